#include "kernels/runtime/check.cuh"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_graph.h"
#include "kernels/runtime/launch.cuh"
#include "kernels/runtime/stream_list.h"

namespace pitstop::kernels {
namespace {

cudaGraphExec_t as_graph(void* handle) { return static_cast<cudaGraphExec_t>(handle); }

thread_local DeviceGraph::EarlyStarts early_starts_of_capture = DeviceGraph::EarlyStarts::kNone;

// Returns the error, or ends the process if the stream can run nothing any more.
Error refused(const char* call, cudaError_t error, Stream stream) {
    (void)cudaGetLastError();
    const cudaError_t now = cudaStreamQuery(cuda_stream(stream));
    if (now != cudaSuccess && now != cudaErrorNotReady)
        cuda_failed(call, error, __FILE__, __LINE__);
    return make_error(
        error == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted
                                           : ErrorCode::kUnsupported,
        "{}: {}, {}; {} bytes of the device are free",
        call,
        cudaGetErrorName(error),
        cudaGetErrorString(error),
        device_memory_info().free_bytes
    );
}

}  // namespace

bool may_start_early(Stream stream) {
    constexpr int kComputeCapabilityMin = 90;
    if (early_starts_of_capture == DeviceGraph::EarlyStarts::kNone) return false;
    if (compute_capability() < kComputeCapabilityMin) return false;
    cudaStreamCaptureStatus status{};
    CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(stream), &status));
    return status == cudaStreamCaptureStatusActive;
}

DeviceGraph::~DeviceGraph() {
    if (handle_ != nullptr) CUDA_CHECK(cudaGraphExecDestroy(as_graph(handle_)));
}

void DeviceGraph::begin_capture(Stream stream, EarlyStarts early_starts) {
    begin_listed_capture(stream);
    early_starts_of_capture = early_starts;
}

Result<DeviceGraph> DeviceGraph::end_capture(Stream stream) {
    early_starts_of_capture = EarlyStarts::kNone;
    cudaGraph_t captured = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(cuda_stream(stream), &captured);
    end_listed_capture(stream);
    if (ended != cudaSuccess) return refused("cudaStreamEndCapture", ended, stream);
    std::size_t num_nodes = 0;
    CUDA_CHECK(cudaGraphGetNodes(captured, nullptr, &num_nodes));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, captured, 0);
    CUDA_CHECK(cudaGraphDestroy(captured));
    if (error != cudaSuccess) return refused("cudaGraphInstantiate", error, stream);
    DeviceGraph graph;
    graph.handle_ = executable;
    graph.num_nodes_ = static_cast<std::int64_t>(num_nodes);
    return graph;
}

void DeviceGraph::launch(Stream stream) const {
    CHECK(handle_ != nullptr);
    CUDA_CHECK(cudaGraphLaunch(as_graph(handle_), cuda_stream(stream)));
}

}  // namespace pitstop::kernels
