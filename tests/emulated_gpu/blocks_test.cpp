// The emulator does what the instructions do, and finds the bugs that it exists for.
#include "tests/emulated_gpu/blocks.h"

#include "kernels/device/ptx.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/runtime/device_range.h"
#include "kernels/runtime/launch.cuh"
#include "tests/kernels/cuda_support.h"

#include <cuda_runtime.h>

namespace pitstop::kernels::test {
namespace {

void run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
    emulator::run_grid(grid, block, shared_bytes, body);
}

TEST(Emulator, BarriersAndShufflesExchange) {
    std::vector<int> sums(3 * 64);
    run({3}, {64}, 0, [&] {
        __shared__ int partial[2];
        const int sum = kernels::warp_sum(static_cast<int>(threadIdx.x + blockIdx.x));
        if (kernels::lane_index() == 0) partial[kernels::warp_index()] = sum;
        __syncthreads();
        sums[blockIdx.x * 64 + threadIdx.x] = partial[0] + partial[1];
        __syncthreads();
    });
    for (int block = 0; block < 3; ++block) {
        for (int thread = 0; thread < 64; ++thread)
            EXPECT_EQ(sums[static_cast<std::size_t>(block * 64 + thread)], 63 * 32 + block * 64);
    }
}

// An mma against its definition, with operands loaded by ldmatrix from plain row-major tiles.
TEST(Emulator, MatrixInstructionsMultiply) {
    const kernels::test::Matrix<bf16> a = kernels::test::random_matrix<bf16>(16, 16, 1);
    const kernels::test::Matrix<bf16> b =
        kernels::test::random_matrix<bf16>(8, 16, 2);  // transposed: [n, k]
    double d[16][8] = {};
    run({1}, {32}, 1024, [&] {
        auto* const shared = reinterpret_cast<bf16*>(kernels::dynamic_shared_memory());
        for (int i = kernels::lane_index(); i < 256; i += 32) shared[i] = a(i / 16, i % 16);
        for (int i = kernels::lane_index(); i < 128; i += 32) shared[256 + i] = b(i / 16, i % 16);
        __syncwarp();
        const int lane = kernels::lane_index();
        std::uint32_t fa[4], fb[4];
        kernels::load_matrices(fa, shared + lane % 16 * 16 + lane / 16 * 8);
        kernels::load_matrices(fb, shared + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
        float sum[4] = {};
        kernels::mma_16x8x16(sum, fa, fb[0], fb[1]);
        for (int i = 0; i < 4; ++i) d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = double{sum[i]};
    });
    for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 8; ++n) {
            double expected = 0.0;
            for (int k = 0; k < 16; ++k) expected += a.value(m, k) * b.value(n, k);
            EXPECT_NEAR(d[m][n], expected, 1e-5);
        }
    }
}

using EmulatorDeathTest = testing::Test;

__global__ void idle_kernel() {}

kernels::DeviceStream make_stream() {
    EXPECT_TRUE(kernels::open_cuda_device(0).has_value());
    Result<kernels::DeviceStream> stream =
        kernels::DeviceStream::create(kernels::StreamPriority::kStep);
    EXPECT_TRUE(stream.has_value());
    return *std::move(stream);
}

TEST(EmulatorDeathTest, ALaunchThatIsRefusedNamesItsKernel) {
    const kernels::DeviceStream stream = make_stream();
    const auto run_idle = [&](dim3 grid, dim3 block, std::int64_t shared_bytes) {
        kernels::launch<idle_kernel>(
            {.grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream.stream()}
        );
    };
    run_idle({1, 3}, {1024}, 48 << 10);
    run_idle({0}, {32}, 0);  // no rows, no work
    stream.wait();
    EXPECT_DEATH(run_idle({1, 65536}, {32}, 0), "idle_kernel");
    EXPECT_DEATH(run_idle({1}, {1056}, 0), "idle_kernel");
    EXPECT_DEATH(run_idle({1}, {32}, 228 << 10), "idle_kernel");
}

TEST(EmulatorDeathTest, ABarrierThatNotAllReachIsFound) {
    EXPECT_DEATH(
        run({1},
            {64},
            0,
            [] {
                if (threadIdx.x < 32) __syncthreads();
            }),
        "barrier|stuck"
    );
}

TEST(EmulatorDeathTest, AShuffleThatNotAllLanesReachIsFound) {
    EXPECT_DEATH(
        run({1},
            {32},
            0,
            [] {
                if (threadIdx.x != 7) (void)kernels::warp_sum(1);
            }),
        "stuck"
    );
}

TEST(EmulatorDeathTest, DifferentInstructionsOfAWarpAreFound) {
    EXPECT_DEATH(
        run({1},
            {32},
            0,
            [] {
                if (threadIdx.x < 16) {
                    __syncwarp();
                } else {
                    (void)kernels::warp_sum(1);
                }
            }),
        "different instructions"
    );
}

TEST(EmulatorDeathTest, ACopyOutsideSharedMemoryIsFound) {
    alignas(16) static const char source[16] = {};
    EXPECT_DEATH(
        run({1},
            {32},
            512,
            [] {
                kernels::copy16_async(
                    kernels::dynamic_shared_memory() + 16 * (threadIdx.x + 1), source, 16
                );
            }),
        "outside"
    );
}

// A copy has not arrived before its wait: the late time shows the missing wait.
TEST(Emulator, ACopyIsLateUnlessItIsWaitedFor) {
    if (std::getenv("PITSTOP_EMULATOR_COPIES") != nullptr)
        GTEST_SKIP() << "some copies are at once";
    alignas(16) static const std::uint32_t source[4] = {1, 2, 3, 4};
    for (const bool waits : {true, false}) {
        std::uint32_t seen = 0;
        run({1}, {32}, 16, [&] {
            if (threadIdx.x == 0) {
                kernels::copy16_async(kernels::dynamic_shared_memory(), source, 16);
                kernels::commit_copies();
                if (waits) kernels::wait_copies<0>();
                seen = *reinterpret_cast<std::uint32_t*>(kernels::dynamic_shared_memory());
            }
        });
        EXPECT_EQ(seen, waits ? 1u : 0xffffffffu);
    }
}

TEST(EmulatorDeathTest, TheHostFindsDeviceMemoryOutOfReach) {
    const kernels::DeviceStream stream = make_stream();
    Result<kernels::DeviceRange> range = kernels::DeviceRange::reserve(1);
    ASSERT_TRUE(range.has_value() && range->map().has_value());
    kernels::fill_device(range->data(), 7, 16, stream.stream());
    stream.wait();
    int sum = 0;
    run({1}, {32}, 0, [&] { sum += static_cast<int>(range->data()[threadIdx.x % 16]); });
    EXPECT_EQ(sum, 32 * 7);
    EXPECT_DEATH(static_cast<void>(*const_cast<volatile std::byte*>(range->data())), "");
}

}  // namespace
}  // namespace pitstop::kernels::test
