// Memory of one GPU that another GPU uses. Source: CUDA Runtime API, "Peer Device Memory Access";
// CUDA Driver API, cuMemSetAccess.
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"

#include <cuda.h>

#include <cstdlib>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 500;

// Runs on GPU 1, on words in GPU 0's memory.
cudaError_t double_from_gpu_1(std::uint32_t* words) {
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(1));
    const cudaStream_t stream = make_stream();
    EXPECT_CUDA(cudaSuccess, launch_double(words, kNum, stream));
    return cudaStreamSynchronize(stream);
}

std::uint32_t* zeros_on_gpu_0() {
    std::uint32_t* words = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
    EXPECT_CUDA(cudaSuccess, cudaMalloc(&words, kNum * sizeof *words));
    EXPECT_CUDA(cudaSuccess, cudaMemset(words, 0, kNum * sizeof *words));
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(nullptr));
    return words;
}

std::uint32_t first_word(const std::uint32_t* words) {
    std::uint32_t word = 0;
    EXPECT_CUDA(cudaSuccess, cudaMemcpy(&word, words, sizeof word, cudaMemcpyDeviceToHost));
    return word;
}

int use_without_access() {
    std::uint32_t* const words = zeros_on_gpu_0();
    return double_from_gpu_1(words) == cudaErrorIllegalAddress ? 0 : 1;
}

// Access to cudaMalloc's memory does not imply access to ranges: each has its own.
int use_range_without_access() {
    if (cudaSetDevice(1) != cudaSuccess || cudaDeviceEnablePeerAccess(0, 0) != cudaSuccess)
        return 1;
    constexpr std::size_t kBytes = std::size_t{2} << 20;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    if (cuMemCreate(&handle, kBytes, &properties, 0) != CUDA_SUCCESS) return 2;
    if (cuMemAddressReserve(&address, kBytes, 0, 0, 0) != CUDA_SUCCESS) return 3;
    if (cuMemMap(address, kBytes, 0, handle, 0) != CUDA_SUCCESS) return 4;
    CUmemAccessDesc both[2] = {};
    for (int gpu = 0; gpu < 2; ++gpu) {
        both[gpu].location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
        both[gpu].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    auto* const words = reinterpret_cast<std::uint32_t*>(address);
    const bool is_for_both = std::getenv("PITSTOP_TEST_BOTH") != nullptr;
    if (cuMemSetAccess(address, kBytes, both, is_for_both ? 2 : 1) != CUDA_SUCCESS) return 5;
    const cudaError_t expected = is_for_both ? cudaSuccess : cudaErrorIllegalAddress;
    return double_from_gpu_1(words) == expected ? 0 : 6;
}

int have_no_peers() {
    int can = -1;
    if (cudaDeviceCanAccessPeer(&can, 0, 1) != cudaSuccess || can != 0) return 1;
    return cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessUnsupported ? 0 : 2;
}

const bool defined = define_part("peers_without_access", use_without_access) &&
                     define_part("peers_range", use_range_without_access) &&
                     define_part("peers_none", have_no_peers);

TEST(Peers, AKernelUsesAnotherGpusMemoryWithAccess) {
    std::uint32_t* const words = zeros_on_gpu_0();
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(1));
    EXPECT_CUDA(cudaSuccess, cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_CUDA(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_CUDA(cudaSuccess, double_from_gpu_1(words));
    EXPECT_EQ(first_word(words), 1u);
    EXPECT_CUDA(cudaSuccess, cudaDeviceDisablePeerAccess(0));
    EXPECT_CUDA(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(0));
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
    EXPECT_CUDA(cudaSuccess, cudaFree(words));
}

TEST(Peers, WithoutAccessItEndsTheContext) {
    ASSERT_TRUE(defined);
    EXPECT_EQ(run_part("peers_without_access", {}), 0);
}

TEST(Peers, ARangeIsForTheGpusThatItWasOpenedFor) {
    EXPECT_EQ(run_part("peers_range", {}), 0);
    EXPECT_EQ(run_part("peers_range", {{"PITSTOP_TEST_BOTH", "1"}}), 0);
}

TEST(Peers, PairsThatDoNotExistAreRefused) {
    int can = -1;
    ASSERT_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    EXPECT_EQ(can, 1);
    ASSERT_OK(cudaDeviceCanAccessPeer(&can, 1, 1));
    EXPECT_EQ(can, 0);
    EXPECT_CUDA(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&can, 0, 2));
    EXPECT_CUDA(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_CUDA(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(9, 0));
    EXPECT_CUDA(cudaErrorInvalidValue, cudaDeviceEnablePeerAccess(1, 1));
    EXPECT_EQ(run_part("peers_none", {{"PITSTOP_EMULATED_PEERS", "0"}}), 0);
}

TEST(Peers, CopiesNeedNoAccess) {
    std::uint32_t* const from = zeros_on_gpu_0();
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(1));
    std::uint32_t* to = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaMalloc(&to, kNum * sizeof *to));
    const cudaStream_t stream = make_stream();
    EXPECT_CUDA(cudaSuccess, cudaMemcpyPeerAsync(to, 1, from, 0, kNum * sizeof *to, stream));
    EXPECT_CUDA(cudaSuccess, launch_double(to, kNum, stream));
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
    EXPECT_EQ(first_word(to), 1u);
    EXPECT_CUDA(cudaErrorInvalidDevice, cudaMemcpyPeer(to, 2, from, 0, sizeof *to));
    EXPECT_CUDA(cudaErrorInvalidValue, cudaMemcpyPeer(to, 0, from, 0, sizeof *to));
    EXPECT_CUDA(cudaSuccess, cudaFree(to));
    EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
    EXPECT_CUDA(cudaSuccess, cudaFree(from));
}

}  // namespace
}  // namespace pitstop::emulator
