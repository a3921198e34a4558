// Only events order streams. Source: CUDA Runtime API, "Event Management", "Stream synchronization
// behavior".
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/settings.h"

#include <atomic>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 300;

TEST(Events, OrderOneStreamAfterAnother) {
    for (int round = 0; round < 20; ++round) {
        const DeviceWords words(kNum);
        const cudaStream_t first = make_stream();
        const cudaStream_t second = make_stream();
        const cudaEvent_t event = make_event();
        ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), first));
        ASSERT_OK(launch_double(words.data(), kNum, first));
        ASSERT_OK(cudaEventRecord(event, first));
        ASSERT_OK(cudaStreamWaitEvent(second, event, 0));
        ASSERT_OK(launch_double(words.data(), kNum, second));
        ASSERT_OK(cudaStreamSynchronize(second));
        EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 3u));
        ASSERT_OK(cudaEventDestroy(event));
        ASSERT_OK(cudaStreamDestroy(first));
        ASSERT_OK(cudaStreamDestroy(second));
    }
}

// Without the event the order is random: the platform must show the missing wait.
TEST(Events, AMissingWaitShowsInSomeOrder) {
    int num_wrong = 0;
    for (int round = 0; round < 50 && num_wrong == 0; ++round) {
        const DeviceWords words(kNum);
        const cudaStream_t first = make_stream();
        const cudaStream_t second = make_stream();
        ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), first));
        ASSERT_OK(cudaStreamSynchronize(first));
        ASSERT_OK(launch_double(words.data(), kNum, first));
        ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), second));
        ASSERT_OK(cudaStreamSynchronize(second));
        ASSERT_OK(cudaStreamSynchronize(first));
        if (words.read() != std::vector<std::uint32_t>(kNum, 0u)) ++num_wrong;
        ASSERT_OK(cudaStreamDestroy(first));
        ASSERT_OK(cudaStreamDestroy(second));
    }
    if (settings().policy != Policy::kEarly) {
        EXPECT_GT(num_wrong, 0);
    }
}

TEST(Events, AQuestionDoesNotWaitAndIsAnsweredInTheEnd) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    const cudaEvent_t event = make_event();
    EXPECT_CUDA(cudaSuccess, cudaEventQuery(event));  // never recorded
    ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), stream));
    ASSERT_OK(cudaEventRecord(event, stream));
    cudaError_t answer = cudaErrorNotReady;
    while (answer == cudaErrorNotReady) answer = cudaEventQuery(event);
    EXPECT_CUDA(cudaSuccess, answer);
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 0u));
}

TEST(Events, HostFunctionsRunInTheirPlace) {
    const cudaStream_t stream = make_stream();
    std::atomic<int> num_calls{0};
    for (int i = 0; i < 3; ++i) {
        ASSERT_OK(cudaLaunchHostFunc(
            stream, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &num_calls
        ));
    }
    ASSERT_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(num_calls, 3);
}

// "Attempting to use a CUDA API may result in cudaErrorNotPermitted."
TEST(Events, AHostFunctionMakesNoCallsOfCuda) {
    const cudaStream_t stream = make_stream();
    cudaError_t answer = cudaSuccess;
    ASSERT_OK(cudaLaunchHostFunc(
        stream,
        [](void* data) { *static_cast<cudaError_t*>(data) = cudaStreamSynchronize(nullptr); },
        &answer
    ));
    ASSERT_OK(cudaStreamSynchronize(stream));
    EXPECT_CUDA(cudaErrorNotPermitted, answer);
}

TEST(Events, TheLegacyStreamWaitsForBlockingStreams) {
    cudaStream_t blocking = nullptr;
    ASSERT_OK(cudaStreamCreateWithPriority(&blocking, 0, 0));
    const DeviceWords words(kNum);
    ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), blocking));
    ASSERT_OK(launch_double(words.data(), kNum, blocking));
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 1u));  // read() waits for `blocking`
}

TEST(Events, HandlesThatAreNotThereAreRefused) {
    cudaStream_t stream = make_stream();
    const cudaEvent_t event = make_event();
    ASSERT_OK(cudaStreamDestroy(stream));
    ASSERT_OK(cudaEventDestroy(event));
    EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream));
    EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventSynchronize(event));
}

TEST(Events, TimesGrow) {
    const cudaStream_t stream = make_stream();
    const cudaEvent_t begin = make_event(0);
    const cudaEvent_t end = make_event(0);
    ASSERT_OK(cudaEventRecord(begin, stream));
    ASSERT_OK(cudaEventRecord(end, stream));
    ASSERT_OK(cudaEventSynchronize(end));
    float ms = -1.f;
    ASSERT_OK(cudaEventElapsedTime(&ms, begin, end));
    EXPECT_GE(ms, 0.f);
}

}  // namespace
}  // namespace pitstop::emulator
