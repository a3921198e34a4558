// Launches that a GPU refuses. Source: CUDA Runtime API, "Execution Control"; CUDA C++ Programming
// Guide, "Technical specifications per compute capability".
#include "tests/emulated_gpu/cuda_calls.h"

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

}  // namespace
}  // namespace pitstop::emulator
