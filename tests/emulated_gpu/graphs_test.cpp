// Captures and graphs. Source: CUDA C++ Programming Guide, "CUDA Graphs", "Prohibited and Unhandled
// Operations", "Cross-stream Dependencies and Events".
#include "tests/emulated_gpu/cuda_calls.h"

#include <functional>
#include <initializer_list>
#include <thread>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 200;

// Fills the words, doubles them in a side stream, and doubles them again in `stream`. Only edges
// keep this order.
cudaGraph_t capture(const DeviceWords& words, cudaStream_t stream, int value) {
    const cudaStream_t side = make_stream();
    const cudaEvent_t forked = make_event();
    const cudaEvent_t joined = make_event();
    EXPECT_CUDA(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_CUDA(cudaSuccess, cudaMemsetAsync(words.data(), value, words.bytes(), stream));
    EXPECT_CUDA(cudaSuccess, cudaEventRecord(forked, stream));
    EXPECT_CUDA(cudaSuccess, cudaStreamWaitEvent(side, forked, 0));
    EXPECT_CUDA(cudaSuccess, launch_double(words.data(), kNum, side));
    EXPECT_CUDA(cudaSuccess, cudaEventRecord(joined, side));
    EXPECT_CUDA(cudaSuccess, cudaStreamWaitEvent(stream, joined, 0));
    EXPECT_CUDA(cudaSuccess, launch_double(words.data(), kNum, stream));
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    return graph;
}

TEST(Graphs, RunWhatWasCapturedAsOftenAsTheyAreLaunched) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    const cudaGraph_t graph = capture(words, stream, 0);
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 0xffffffffu));  // nothing has run
    std::size_t num_nodes = 0;
    ASSERT_OK(cudaGraphGetNodes(graph, nullptr, &num_nodes));
    EXPECT_EQ(num_nodes, 3u);
    cudaGraphExec_t executable = nullptr;
    ASSERT_OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 20; ++round) {
        ASSERT_OK(cudaMemsetAsync(words.data(), 9, words.bytes(), stream));
        ASSERT_OK(cudaGraphLaunch(executable, stream));
        ASSERT_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 3u));
    }
}

TEST(Graphs, AnExecutableHasMemoryOfItsGpuUntilItIsDestroyed) {
    const DeviceWords words(kNum);
    const cudaGraph_t graph = capture(words, make_stream(), 0);
    const auto free_bytes = [] {
        std::size_t num = 0;
        std::size_t total = 0;
        EXPECT_CUDA(cudaSuccess, cudaMemGetInfo(&num, &total));
        return num;
    };
    const std::size_t before = free_bytes();
    cudaGraphExec_t executable = nullptr;
    ASSERT_OK(cudaGraphInstantiate(&executable, graph, 0));
    EXPECT_EQ(free_bytes(), before - 4096);  // a page is enough for three nodes
    ASSERT_OK(cudaGraphExecDestroy(executable));
    EXPECT_EQ(free_bytes(), before);
}

TEST(Graphs, AnExecutableTakesNewArgumentsOfTheSameShape) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    cudaGraphExec_t executable = nullptr;
    ASSERT_OK(cudaGraphInstantiate(&executable, capture(words, stream, 0), 0));
    cudaGraphExecUpdateResultInfo result{};
    const DeviceWords others(kNum);
    ASSERT_OK(cudaGraphExecUpdate(executable, capture(others, stream, 0), &result));
    ASSERT_OK(cudaGraphLaunch(executable, stream));
    ASSERT_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(others.read(), std::vector<std::uint32_t>(kNum, 3u));
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 0xffffffffu));

    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_OK(launch_double(words.data(), kNum, stream));
    cudaGraph_t smaller = nullptr;
    ASSERT_OK(cudaStreamEndCapture(stream, &smaller));
    EXPECT_CUDA(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, smaller, &result));
    EXPECT_EQ(result.result, cudaGraphExecUpdateErrorTopologyChanged);
}

TEST(Graphs, AnAllocationInACaptureFailsAndEndsIt) {
    const cudaStream_t stream = make_stream();
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    void* data = nullptr;
    EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaMalloc(&data, 16));
    cudaStreamCaptureStatus status{};
    ASSERT_OK(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(graph, nullptr);
    EXPECT_CUDA(cudaSuccess, cudaMalloc(&data, 16));
    EXPECT_CUDA(cudaSuccess, cudaFree(data));
}

// The workers capture with cudaStreamCaptureModeThreadLocal: one thread allocates memory to stage
// weights while another captures a step.
TEST(Graphs, AnAllocationOfAnotherThreadEndsAGlobalCaptureAlone) {
    const cudaStream_t stream = make_stream();
    const auto captured_beside = [&](cudaStreamCaptureMode mode, cudaError_t allocation) {
        EXPECT_CUDA(cudaSuccess, cudaStreamBeginCapture(stream, mode));
        std::thread([&] {
            void* data = nullptr;
            EXPECT_CUDA(allocation, cudaMalloc(&data, 16));
            if (data != nullptr) EXPECT_CUDA(cudaSuccess, cudaFree(data));
        }).join();
        cudaGraph_t graph = nullptr;
        return cudaStreamEndCapture(stream, &graph);
    };
    EXPECT_CUDA(
        cudaErrorStreamCaptureInvalidated,
        captured_beside(cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported)
    );
    EXPECT_CUDA(cudaSuccess, captured_beside(cudaStreamCaptureModeThreadLocal, cudaSuccess));
    EXPECT_CUDA(cudaSuccess, captured_beside(cudaStreamCaptureModeRelaxed, cudaSuccess));
}

// "It is invalid to synchronize or query the execution status of ... the device or context handle
// that has an active stream capture". In every mode and thread, call and capture fail.
TEST(Graphs, ASynchronizationOfTheDeviceEndsEveryCaptureAndItself) {
    const cudaStream_t stream = make_stream();
    for (const cudaStreamCaptureMode mode :
         {cudaStreamCaptureModeGlobal,
          cudaStreamCaptureModeThreadLocal,
          cudaStreamCaptureModeRelaxed}) {
        ASSERT_OK(cudaStreamBeginCapture(stream, mode));
        std::thread([] { EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize()); }
        ).join();
        cudaGraph_t graph = nullptr;
        EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
        EXPECT_CUDA(cudaSuccess, cudaDeviceSynchronize());
    }
}

TEST(Graphs, ACaptureEndsInTheThreadThatBeganIt) {
    const cudaStream_t stream = make_stream();
    cudaGraph_t graph = nullptr;
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    std::thread([&] {
        EXPECT_CUDA(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(stream, &graph));
    }).join();
    EXPECT_CUDA(cudaSuccess, cudaStreamEndCapture(stream, &graph));
}

TEST(Graphs, WaitsAndQuestionsInACaptureFail) {
    const cudaStream_t stream = make_stream();
    const cudaEvent_t event = make_event();
    cudaGraph_t graph = nullptr;
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    ASSERT_OK(cudaEventRecord(event, stream));
    EXPECT_CUDA(cudaErrorCapturedEvent, cudaEventQuery(event));
    EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    const cudaEvent_t outside = make_event();
    EXPECT_CUDA(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream, outside, 0));
    EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
}

// "When any stream in the same context is being captured, and it was not created with
// cudaStreamNonBlocking, any attempted use of the legacy stream is invalid."
TEST(Graphs, TheLegacyStreamIsNotForUseWhileABlockingStreamCaptures) {
    const DeviceWords words(kNum);
    cudaStream_t blocking = nullptr;
    ASSERT_OK(cudaStreamCreateWithPriority(&blocking, 0, 0));
    cudaGraph_t graph = nullptr;
    const auto memset = [&] { return cudaMemsetAsync(words.data(), 0, words.bytes(), nullptr); };
    for (const auto& use : std::initializer_list<std::function<cudaError_t()>>{
             memset,
             [&] { return launch_double(words.data(), kNum, nullptr); },
             [] { return cudaEventRecord(make_event(), nullptr); },
             [] { return cudaStreamQuery(nullptr); }}) {
        ASSERT_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
        EXPECT_CUDA(cudaErrorStreamCaptureImplicit, use());
        EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(blocking, &graph));
    }
    const cudaStream_t other = make_stream();  // not ordered with the legacy stream
    ASSERT_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    EXPECT_CUDA(cudaSuccess, memset());
    EXPECT_CUDA(cudaSuccess, cudaStreamEndCapture(other, &graph));
    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(nullptr));  // before the words are freed
}

TEST(Graphs, AWaitDoesNotMergeTwoCaptures) {
    const cudaStream_t streams[2] = {make_stream(), make_stream()};
    const cudaEvent_t event = make_event();
    for (const cudaStream_t stream : streams)
        ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    ASSERT_OK(cudaEventRecord(event, streams[0]));
    EXPECT_CUDA(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(streams[1], event, 0));
    for (const cudaStream_t stream : streams) {
        cudaGraph_t graph = nullptr;
        EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    }
}

TEST(Graphs, APageableSourceIsReadByEachLaunch) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    std::vector<std::uint32_t> host(kNum, 1u);
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_OK(
        cudaMemcpyAsync(words.data(), host.data(), words.bytes(), cudaMemcpyHostToDevice, stream)
    );
    cudaGraph_t graph = nullptr;
    ASSERT_OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable = nullptr;
    ASSERT_OK(cudaGraphInstantiate(&executable, graph, 0));
    for (const std::uint32_t word : {2u, 3u}) {
        host.assign(kNum, word);
        ASSERT_OK(cudaGraphLaunch(executable, stream));
        ASSERT_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(words.read(), host);
    }
}

TEST(Graphs, WorkThatDidNotComeBackIsUnjoined) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    const cudaStream_t side = make_stream();
    const cudaEvent_t forked = make_event();
    ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), stream));
    ASSERT_OK(cudaEventRecord(forked, stream));
    ASSERT_OK(cudaStreamWaitEvent(side, forked, 0));
    ASSERT_OK(launch_double(words.data(), kNum, side));
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(side, &graph));
    EXPECT_CUDA(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(stream, &graph));
}

}  // namespace
}  // namespace pitstop::emulator
