#include "kernels/cuda_device.h"
#include "kernels/device/check.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device_graph.h"
#include "kernels/stream_list.h"

namespace pitstop::kernels {
namespace {

cudaGraphExec_t as_graph(void* handle) { return static_cast<cudaGraphExec_t>(handle); }

}  // namespace

bool may_start_early(Stream stream) {
    constexpr int kComputeCapabilityMin = 90;
    if (compute_capability() < kComputeCapabilityMin) return false;
    cudaStreamCaptureStatus status{};
    CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(stream), &status));
    return status == cudaStreamCaptureStatusActive;
}

DeviceGraph::~DeviceGraph() {
    if (handle_ != nullptr) CUDA_CHECK(cudaGraphExecDestroy(as_graph(handle_)));
}

void DeviceGraph::begin_capture(Stream stream) { begin_listed_capture(stream); }

Result<DeviceGraph> DeviceGraph::end_capture(Stream stream) {
    cudaGraph_t captured = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(cuda_stream(stream), &captured));
    end_listed_capture(stream);
    std::size_t num_nodes = 0;
    CUDA_CHECK(cudaGraphGetNodes(captured, nullptr, &num_nodes));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, captured, 0);
    CUDA_CHECK(cudaGraphDestroy(captured));
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();  // not sticky: nothing is broken
        return make_error(
            ErrorCode::kResourceExhausted,
            "no device memory for a graph of {} kernels; {} bytes are free",
            num_nodes,
            device_memory_info().free_bytes
        );
    }
    if (error != cudaSuccess) cuda_failed("cudaGraphInstantiate", error, __FILE__, __LINE__);
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
