// The conditions of wgmma: each violation ends the kernel. Source: PTX ISA, as in warpgroups.h.
#include "tests/emulated_gpu/warpgroups.h"

#include "kernels/device/ptx.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/device/wgmma.cuh"
#include "tests/emulated_gpu/blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

namespace pitstop::kernels::test {
namespace {

enum class Slip : std::uint8_t { kNone, kNoProxyFence, kNoFence, kSumsTouched, kFragmentTouched };

constexpr std::size_t kQueriesBytes = 64 * 128;
constexpr std::size_t kKeysBytes = 128 * 128;
constexpr std::size_t kSharedBytes = kQueriesBytes + kKeysBytes;

void run(dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
    emulator::run_grid({1}, block, shared_bytes, body);
}

// 64 rows of ones times 128 rows of ones, over 16 columns and, with a fragment, 16 more: returns
// each thread's sums.
std::vector<float> multiply(Slip slip) {
    alignas(16) static constexpr std::array<std::uint16_t, 8> kOnes{
        0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80};
    std::vector<float> sums(128 * 64);
    run({128}, kSharedBytes, [&] {
        std::byte* const queries = kernels::dynamic_shared_memory();
        std::byte* const keys = queries + kQueriesBytes;
        for (std::size_t at = threadIdx.x * 16; at < kSharedBytes; at += 128 * 16)
            kernels::copy16_async(queries + at, kOnes.data(), 16);
        kernels::commit_copies();
        kernels::wait_copies<0>();
        if (slip != Slip::kNoProxyFence) kernels::fence_async_proxy();
        __syncthreads();
        float d[64] = {};
        std::uint32_t fragment[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
        if (slip != Slip::kNoFence) kernels::wgmma_fence();
        kernels::wgmma_ss(
            d,
            kernels::wgmma_rows_descriptor(kernels::shared_address(queries)),
            kernels::wgmma_rows_descriptor(kernels::shared_address(keys)),
            0
        );
        kernels::wgmma_rs(
            d, fragment, kernels::wgmma_columns_descriptor(kernels::shared_address(keys), 2048)
        );
        if (slip == Slip::kSumsTouched) d[3] += 1.f;
        if (slip == Slip::kFragmentTouched) fragment[1] = 0;
        kernels::wgmma_commit();
        kernels::wgmma_wait<0>(d);
        for (std::size_t i = 0; i < 64; ++i) sums[threadIdx.x * 64 + i] = d[i];
    });
    return sums;
}

TEST(Warpgroups, AProductWithItsFencesAndWaitsIsRight) {
    EXPECT_EQ(multiply(Slip::kNone), std::vector<float>(128 * 64, 32.f));
}

TEST(WarpgroupsDeathTest, CopiesNeedAProxyFence) {
    EXPECT_DEATH(multiply(Slip::kNoProxyFence), "without a fence.proxy.async");
}

// multiply() with keys that the second warpgroup stores by ordinary stores, in four blocks.
// `fences(thread)`: whether the thread has a fence, which the second warpgroup has before the
// barrier and the first after it.
std::vector<float> multiply_stored(const std::function<bool(int)>& fences) {
    std::vector<float> sums(128);
    emulator::run_grid({4}, {256}, kSharedBytes, [&] {
        std::byte* const queries = kernels::dynamic_shared_memory();
        std::byte* const keys = queries + kQueriesBytes;
        const int thread = static_cast<int>(threadIdx.x);
        // An earlier fence of all threads: it does not cover later stores.
        kernels::fence_async_proxy();
        __syncthreads();
        if (thread >= 128) {
            for (std::size_t at = (threadIdx.x - 128) * 4; at < kSharedBytes; at += 128 * 4)
                *reinterpret_cast<std::uint32_t*>(queries + at) = 0x3f803f80;
        }
        if (thread >= 128 && fences(thread)) kernels::fence_async_proxy();
        __syncthreads();
        if (thread >= 128) return;
        if (fences(thread)) kernels::fence_async_proxy();
        float d[64] = {};
        kernels::wgmma_fence();
        kernels::wgmma_ss(
            d,
            kernels::wgmma_rows_descriptor(kernels::shared_address(queries)),
            kernels::wgmma_rows_descriptor(kernels::shared_address(keys)),
            0
        );
        kernels::wgmma_commit();
        kernels::wgmma_wait<0>(d);
        sums[threadIdx.x] = d[63];
    });
    return sums;
}

TEST(Warpgroups, AProductSeesWhatItsWritersHaveFenced) {
    const auto writers = [](int thread) { return thread >= 128; };
    EXPECT_EQ(multiply_stored(writers), std::vector<float>(128, 16.f));
}

TEST(WarpgroupsDeathTest, OrdinaryStoresNeedAProxyFence) {
    const auto nobody = [](int) { return false; };
    EXPECT_DEATH(multiply_stored(nobody), "without a fence.proxy.async");
}

TEST(WarpgroupsDeathTest, AFenceOfOneWarpIsNotTheOthers) {
    const auto one_writer = [](int thread) { return thread == 128; };
    EXPECT_DEATH(multiply_stored(one_writer), "without a fence.proxy.async");
    const auto readers = [](int thread) { return thread < 128; };
    EXPECT_DEATH(multiply_stored(readers), "without a fence.proxy.async");
}

TEST(WarpgroupsDeathTest, RegistersNeedAFenceBeforeTheFirstProduct) {
    EXPECT_DEATH(multiply(Slip::kNoFence), "without a wgmma.fence");
}

TEST(WarpgroupsDeathTest, RegistersOfAProductAreLeftAloneUntilTheWait) {
    EXPECT_DEATH(multiply(Slip::kSumsTouched), "before it was waited for");
    EXPECT_DEATH(multiply(Slip::kFragmentTouched), "before it was waited for");
}

// One warpgroup of three gives registers away; the other two take them.
template <int kTaken>
void share_registers() {
    run({384}, 0, [] {
        if (threadIdx.x < 128) {
            kernels::give_registers<40>();
        } else {
            kernels::take_registers<kTaken>();
        }
    });
}

TEST(WarpgroupsDeathTest, ABlockHasSoManyRegisters) {
    share_registers<232>();  // 128 * (40 + 2 * 232) = 384 * 168
    EXPECT_DEATH(share_registers<240>(), "setmaxnreg");
    EXPECT_DEATH(share_registers<100>(), "setmaxnreg of 100");
}

}  // namespace
}  // namespace pitstop::kernels::test
