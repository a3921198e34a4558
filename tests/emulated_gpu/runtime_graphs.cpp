// CUDA's runtime: captures and graphs. Source: CUDA Runtime API, "Stream Management" (captures) and
// "Graph Management".
#include "tests/emulated_gpu/calls.h"

#include <map>
#include <optional>
#include <utility>

namespace pitstop::emulator {
namespace {

template <class Handle, class T>
class Table {
  public:
    Handle add(std::shared_ptr<T> value) {
        const auto handle = reinterpret_cast<Handle>(value.get());
        const std::scoped_lock lock(mutex_);
        values_[handle] = std::move(value);
        return handle;
    }
    std::shared_ptr<T> find(Handle handle) {
        const std::scoped_lock lock(mutex_);
        const auto found = values_.find(handle);
        return found == values_.end() ? nullptr : found->second;
    }
    bool remove(Handle handle) {
        const std::scoped_lock lock(mutex_);
        return values_.erase(handle) == 1;
    }

  private:
    std::mutex mutex_{};
    std::map<Handle, std::shared_ptr<T>> values_{};
};

Table<cudaGraph_t, Graph>& graphs() {
    static auto* const table = new Table<cudaGraph_t, Graph>;
    return *table;
}
Table<cudaGraphExec_t, GraphExecutable>& executables() {
    static auto* const table = new Table<cudaGraphExec_t, GraphExecutable>;
    return *table;
}

}  // namespace
}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    const std::shared_ptr<Capture> capture = stream->capture;
    *status = capture == nullptr    ? cudaStreamCaptureStatusNone
              : capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    PITSTOP_ENTER();
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    if (stream->kind == StreamKind::kLegacy) return told(cudaErrorStreamCaptureUnsupported);
    if (stream->capture != nullptr) return told(cudaErrorInvalidValue);
    begin_capture(
        stream,
        mode == cudaStreamCaptureModeRelaxed       ? CaptureMode::kRelaxed
        : mode == cudaStreamCaptureModeThreadLocal ? CaptureMode::kThreadLocal
                                                   : CaptureMode::kGlobal
    );
    return cudaSuccess;
}

// Ends the capture, whatever the result.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    const cudaError_t entered = enter_call(__func__);
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    *graph = nullptr;
    std::shared_ptr<Graph> captured;
    const int error = end_capture(stream, &captured);
    if (entered != cudaSuccess) return told(entered);
    if (error != 0) return told(static_cast<cudaError_t>(error));
    *graph = graphs().add(std::move(captured));
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    PITSTOP_ENTER();
    return told(graphs().remove(graph) ? cudaSuccess : cudaErrorInvalidValue);
}

// Only the count is served: a node has no handle here.
cudaError_t cudaGraphGetNodes(cudaGraph_t handle, void** nodes, std::size_t* num) {
    PITSTOP_ENTER();
    const std::shared_ptr<Graph> graph = graphs().find(handle);
    if (graph == nullptr || nodes != nullptr) return told(cudaErrorInvalidValue);
    *num = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(
    cudaGraphExec_t* executable, cudaGraph_t handle, unsigned long long flags
) {
    PITSTOP_ENTER_UNSAFE();
    const std::shared_ptr<Graph> graph = graphs().find(handle);
    if (graph == nullptr || flags != 0) return told(cudaErrorInvalidValue);
    auto made = std::make_shared<GraphExecutable>();
    made->graph = std::make_shared<const Graph>(*graph);
    made->memory =
        create_own_memory(current_gpu(), graph->nodes.size() * kGraphNodeBytes, OwnMemory::kGraph);
    if (made->memory == nullptr) return told(cudaErrorMemoryAllocation);
    *executable = executables().add(std::move(made));
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(
    cudaGraphExec_t handle, cudaGraph_t graph_handle, cudaGraphExecUpdateResultInfo* result
) {
    PITSTOP_ENTER();
    const std::shared_ptr<GraphExecutable> executable = executables().find(handle);
    const std::shared_ptr<Graph> graph = graphs().find(graph_handle);
    if (executable == nullptr || graph == nullptr) return told(cudaErrorInvalidValue);
    if (!is_same_topology(*executable->graph, *graph)) {
        result->result = cudaGraphExecUpdateErrorTopologyChanged;
        return told(cudaErrorGraphExecUpdateFailure);
    }
    result->result = cudaGraphExecUpdateSuccess;
    executable->graph = std::make_shared<const Graph>(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<GraphExecutable> executable = executables().find(handle);
    const std::shared_ptr<Stream> stream = stream_of(stream_handle);
    if (stream == nullptr) return told(no_stream(stream_handle));
    if (executable == nullptr) return told(cudaErrorInvalidResourceHandle);
    Work work = launch_work(executable->graph);
    if (executable->last_launch.stream != nullptr) work.after.push_back(executable->last_launch);
    executable->last_launch = enqueue(stream, std::move(work));
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    PITSTOP_ENTER();
    return told(executables().remove(handle) ? cudaSuccess : cudaErrorInvalidValue);
}

}  // extern "C"
