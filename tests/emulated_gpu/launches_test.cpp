// Launches that a GPU refuses. Source: CUDA Runtime API, "Execution Control"; CUDA C++ Programming
// Guide, "Technical specifications per compute capability".
#include "kernels/device/system_scope.cuh"
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/settings.h"

#include <cuda.h>

namespace pitstop::emulator {
namespace {

constexpr int kOptIn = 227 << 10;  // bytes of shared memory that a block of Hopper can have
constexpr int kPlain = 48 << 10;
constexpr int kStatic = 20 << 10;

__global__ void with_static_memory(std::uint32_t* word) {
    __shared__ std::uint32_t words[kStatic / 4];
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) *word = words[1];
}

__global__ void without(std::uint32_t* word) {
    if (threadIdx.x == 0) *word = 1;
}

// Used by one test only, so that no earlier launch has loaded their code.
__global__ void launched_first(std::uint32_t* word) { *word = threadIdx.x; }
__global__ void loaded_first(std::uint32_t* word) { *word = threadIdx.x + 1; }

// Each block counts itself, and returns when all blocks have.
__global__ void meet_all(std::uint32_t* num_here) {
    if (threadIdx.x != 0) return;
    atomicAdd(num_here, 1u);
    while (*static_cast<volatile std::uint32_t*>(num_here) < gridDim.x) kernels::stand_by();
}

cudaError_t launch_meeting(unsigned num_blocks, bool is_cooperative, std::uint32_t* num_here) {
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = is_cooperative ? 1 : 0;
    cudaLaunchConfig_t config{};
    config.gridDim = {num_blocks};
    config.blockDim = {1024};
    config.attrs = &cooperative;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, meet_all, num_here);
}

template <class Kernel>
cudaError_t launch(Kernel* kernel, int dynamic_bytes, std::uint32_t* word, unsigned threads = 32) {
    cudaLaunchConfig_t config{};
    config.gridDim = {1};
    config.blockDim = {threads};
    config.dynamicSmemBytes = static_cast<std::size_t>(dynamic_bytes);
    return cudaLaunchKernelEx(&config, kernel, word);
}

TEST(Launches, DynamicSharedMemoryBesideTheStaticIsLimited) {
    const DeviceWords word(1);
    EXPECT_CUDA(cudaSuccess, launch(without, kPlain, word.data()));
    EXPECT_CUDA(cudaErrorInvalidValue, launch(without, kPlain + 1, word.data()));
    EXPECT_CUDA(cudaSuccess, launch(with_static_memory, kPlain - kStatic, word.data()));
    EXPECT_CUDA(
        cudaErrorInvalidValue, launch(with_static_memory, kPlain - kStatic + 1, word.data())
    );
    ASSERT_OK(cudaDeviceSynchronize());
}

TEST(Launches, MoreIsAskedForUpToTheBlocksLimit) {
    constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const DeviceWords word(1);
    EXPECT_CUDA(cudaSuccess, cudaFuncSetAttribute(without, kAttribute, kOptIn));
    EXPECT_CUDA(cudaSuccess, launch(without, kOptIn, word.data()));
    EXPECT_CUDA(cudaErrorInvalidValue, launch(without, kOptIn + 1, word.data()));
    EXPECT_CUDA(cudaErrorInvalidValue, cudaFuncSetAttribute(without, kAttribute, kOptIn + 1));
    EXPECT_CUDA(
        cudaErrorInvalidValue,
        cudaFuncSetAttribute(with_static_memory, kAttribute, kOptIn - kStatic + 1)
    );
    EXPECT_CUDA(
        cudaSuccess, cudaFuncSetAttribute(with_static_memory, kAttribute, kOptIn - kStatic)
    );
    EXPECT_CUDA(cudaSuccess, launch(with_static_memory, kOptIn - kStatic, word.data()));
    ASSERT_OK(cudaDeviceSynchronize());
    ASSERT_OK(cudaFuncSetAttribute(without, kAttribute, kPlain));
    ASSERT_OK(cudaFuncSetAttribute(with_static_memory, kAttribute, kPlain - kStatic));
}

TEST(Launches, ABlockHasSoManyThreads) {
    const DeviceWords word(1);
    EXPECT_CUDA(cudaErrorInvalidConfiguration, launch(without, 0, word.data(), 1025));
    EXPECT_CUDA(cudaErrorInvalidConfiguration, launch(without, 0, word.data(), 0));
}

// Source: CUDA C++ Programming Guide, "Cooperative Groups", "Grid Synchronization".
TEST(Launches, ACooperativeLaunchHasAllItsBlocksAtOnceOrIsRefused) {
    constexpr unsigned kResident = 2 * kMultiprocessors;  // blocks of 1024 threads
    const DeviceWords word(1);
    ASSERT_OK(cudaMemset(word.data(), 0, 4));
    EXPECT_CUDA(cudaSuccess, launch_meeting(kResident, true, word.data()));
    ASSERT_OK(cudaDeviceSynchronize());
    EXPECT_EQ(word.read().front(), kResident);
    EXPECT_CUDA(
        cudaErrorCooperativeLaunchTooLarge, launch_meeting(kResident + 1, true, word.data())
    );
}

// Source: CUDA C++ Programming Guide, "Lazy Loading".
TEST(Launches, AKernelsCodeTakesMemoryFromItsFirstLaunchOrItsLoading) {
    const auto free_bytes = [] {
        std::size_t free = 0;
        std::size_t total = 0;
        EXPECT_CUDA(cudaSuccess, cudaMemGetInfo(&free, &total));
        return free;
    };
    const DeviceWords word(1);
    const std::size_t before = free_bytes();
    void* rest = nullptr;
    ASSERT_OK(cudaMalloc(&rest, before));
    EXPECT_CUDA(cudaErrorMemoryAllocation, launch(launched_first, 0, word.data()));
    cudaFunction_t function = nullptr;
    ASSERT_OK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&loaded_first)));
    EXPECT_EQ(cuFuncLoad(function), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cudaFree(rest));
    EXPECT_CUDA(cudaSuccess, launch(launched_first, 0, word.data()));
    EXPECT_EQ(cuFuncLoad(function), CUDA_SUCCESS);
    const std::size_t after = free_bytes();
    EXPECT_EQ(before - after, 2 * static_cast<std::size_t>(settings().code_bytes));
    ASSERT_OK(cudaMalloc(&rest, after));
    EXPECT_CUDA(cudaSuccess, launch(launched_first, 0, word.data()));
    EXPECT_CUDA(cudaSuccess, launch(loaded_first, 0, word.data()));
    ASSERT_OK(cudaDeviceSynchronize());
    ASSERT_OK(cudaFree(rest));
}

// Counts itself, and sets `has_met` if the other kernel counts itself while this one runs.
__global__ void meet_other(std::uint32_t* num_here, std::uint32_t* has_met) {
    constexpr int kLooks = 20000;
    if (threadIdx.x != 0) return;
    atomicAdd(num_here, 1u);
    *has_met = 0;
    for (int i = 0; i < kLooks && *has_met == 0; ++i) {
        *has_met = *static_cast<volatile std::uint32_t*>(num_here) == 2 ? 1 : 0;
        kernels::stand_by();
    }
}

// Returns how many of two cooperative kernels, each in a stream of its own, met the other.
int num_that_met() {
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = {1};
    config.blockDim = {32};
    config.attrs = &cooperative;
    config.numAttrs = 1;
    const DeviceWords num_here(1), first(1), second(1);
    EXPECT_CUDA(cudaSuccess, cudaMemset(num_here.data(), 0, 4));
    EXPECT_CUDA(cudaSuccess, cudaDeviceSynchronize());
    for (const DeviceWords* each : {&first, &second}) {
        config.stream = make_stream();
        EXPECT_CUDA(
            cudaSuccess, cudaLaunchKernelEx(&config, meet_other, num_here.data(), each->data())
        );
    }
    EXPECT_CUDA(cudaSuccess, cudaDeviceSynchronize());
    return static_cast<int>(first.read().front() + second.read().front());
}
int met_in_turn() {
    return num_that_met() == 1 ? 0 : 1;
}  // only the second kernel sees that the other was counted
int met_together() { return num_that_met() == 2 ? 0 : 1; }
const bool are_parts_defined =
    define_part("met_in_turn", met_in_turn) && define_part("met_together", met_together);

// Source: CUDA C++ Programming Guide, "Concurrent Kernel Execution": kernels may run together.
TEST(Launches, CooperativeKernelsOfTwoStreamsRunTogetherOrInTurn) {
    ASSERT_TRUE(are_parts_defined);
    EXPECT_EQ(run_part("met_together", {}), 0);
    EXPECT_EQ(run_part("met_in_turn", {{"PITSTOP_EMULATED_GRIDS", "one"}}), 0);
}

TEST(LaunchesDeathTest, BlocksThatWaitForOneAnotherAreLaunchedTogether) {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_DEATH(
        {
            const DeviceWords word(1);
            cudaMemset(word.data(), 0, 4);
            EXPECT_CUDA(cudaSuccess, launch_meeting(2, false, word.data()));
            EXPECT_CUDA(cudaSuccess, cudaDeviceSynchronize());
        },
        "not cooperative"
    );
}

}  // namespace
}  // namespace pitstop::emulator
