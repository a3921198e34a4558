// In graphs, kernels that begin before the previous one has ended. Source: CUDA C++ Programming
// Guide, "Programmatic Dependent Launch and Synchronization".
#include "kernels/device/dependent_launch.cuh"
#include "tests/emulated_gpu/cuda_calls.h"

namespace pitstop::emulator {
namespace {

constexpr std::uint32_t kBlocks = 5;
constexpr std::uint32_t kThreads = 64;
constexpr std::uint32_t kNum = kBlocks * kThreads;

// words[i] = value, once the next may begin.
__global__ void write_late(std::uint32_t* words, std::uint32_t value) {
    kernels::let_next_kernel_start();
    kernels::wait_for_kernel_before();
    words[blockIdx.x * kThreads + threadIdx.x] = value;
}

// Writes the same values, but the next kernel begins only when this one ends.
__global__ void write(std::uint32_t* words, std::uint32_t value) {
    words[blockIdx.x * kThreads + threadIdx.x] = value;
}

// Reads the value that a thread of another block wrote.
template <bool kWaits>
__global__ void add_one(const std::uint32_t* from, std::uint32_t* to) {
    kernels::let_next_kernel_start();
    if constexpr (kWaits) kernels::wait_for_kernel_before();
    const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    to[i] = from[kNum - 1 - i] + 1;
}

template <class Kernel, class... Args>
void launch(cudaStream_t stream, bool starts_early, Kernel* kernel, Args... args) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = starts_early ? 1 : 0;
    cudaLaunchConfig_t config{};
    config.gridDim = {kBlocks};
    config.blockDim = {kThreads};
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    EXPECT_CUDA(cudaSuccess, cudaLaunchKernelEx(&config, kernel, args...));
}

// Repeatedly launches the stream's work of `enqueue` as a graph. Returns how many times `words` was
// not `expected`.
template <class F>
int num_wrong(const DeviceWords& words, std::uint32_t expected, F enqueue) {
    const cudaStream_t stream = make_stream();
    EXPECT_CUDA(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    enqueue(stream);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaGraphInstantiate(&executable, graph, 0));
    constexpr int kRounds = 60;
    int num = 0;
    for (int round = 0; round < kRounds; ++round) {
        EXPECT_CUDA(cudaSuccess, cudaMemsetAsync(words.data(), 9, words.bytes(), stream));
        EXPECT_CUDA(cudaSuccess, cudaGraphLaunch(executable, stream));
        EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
        num += words.read() == std::vector<std::uint32_t>(kNum, expected) ? 0 : 1;
    }
    return num;
}

TEST(Overlap, AKernelThatWaitsSeesAllThatCameBeforeIt) {
    const DeviceWords a(kNum);
    const DeviceWords b(kNum);
    const int num = num_wrong(a, 14, [&](cudaStream_t stream) {
        launch(stream, false, write, a.data(), 3u);
        launch(stream, true, write_late, a.data(), 10u);
        for (int i = 0; i < 2; ++i) {
            launch(stream, true, add_one<true>, a.data(), b.data());
            launch(stream, true, add_one<true>, b.data(), a.data());
        }
    });
    EXPECT_EQ(num, 0);
}

TEST(Overlap, AKernelThatDoesNotWaitIsFoundOut) {
    const DeviceWords a(kNum);
    const DeviceWords b(kNum);
    const int num = num_wrong(b, 11, [&](cudaStream_t stream) {
        launch(stream, false, write, a.data(), 3u);
        launch(stream, true, write_late, a.data(), 10u);
        launch(stream, true, add_one<false>, a.data(), b.data());
    });
    EXPECT_GT(num, 0);
}

// A kernel that does not wait may end before earlier kernels, so a kernel that waits for it alone
// may run before they have ended.
TEST(Overlap, AWaitForAKernelThatDoesNotWaitCoversNoEarlierKernel) {
    const DeviceWords a(kNum);
    const DeviceWords b(kNum);
    const DeviceWords other(kNum);
    const int num = num_wrong(b, 11, [&](cudaStream_t stream) {
        launch(stream, false, write, a.data(), 3u);
        launch(stream, true, write_late, a.data(), 10u);
        launch(stream, true, add_one<false>, other.data(), other.data());
        launch(stream, true, add_one<true>, a.data(), b.data());
    });
    EXPECT_GT(num, 0);
}

TEST(Overlap, NoKernelBeginsBeforeItsTime) {
    const DeviceWords a(kNum);
    const DeviceWords b(kNum);
    const auto is_early = [&](bool says_so, bool starts_early) {
        return num_wrong(b, 11, [&](cudaStream_t stream) {
                   launch(stream, false, write, a.data(), 3u);
                   launch(stream, true, says_so ? write_late : write, a.data(), 10u);
                   launch(stream, starts_early, add_one<false>, a.data(), b.data());
               }) > 0;
    };
    EXPECT_FALSE(is_early(/*says_so=*/false, /*starts_early=*/true));
    EXPECT_FALSE(is_early(/*says_so=*/true, /*starts_early=*/false));
    EXPECT_TRUE(is_early(/*says_so=*/true, /*starts_early=*/true));
}

}  // namespace
}  // namespace pitstop::emulator
