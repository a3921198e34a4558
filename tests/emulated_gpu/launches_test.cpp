// Launches that a GPU refuses. Source: CUDA Runtime API, "Execution Control"; CUDA C++ Programming
// Guide, "Technical specifications per compute capability".
#include "kernels/device/system_scope.cuh"
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/machine.h"

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

// Every block says that it is there, and leaves when all have.
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
    constexpr unsigned kResident = 2 * kMultiprocessors;  // of 1024 threads
    const DeviceWords word(1);
    ASSERT_OK(cudaMemset(word.data(), 0, 4));
    EXPECT_CUDA(cudaSuccess, launch_meeting(kResident, true, word.data()));
    ASSERT_OK(cudaDeviceSynchronize());
    EXPECT_EQ(word.read().front(), kResident);
    EXPECT_CUDA(
        cudaErrorCooperativeLaunchTooLarge, launch_meeting(kResident + 1, true, word.data())
    );
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
