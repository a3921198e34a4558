#include "tp_worker/model/step_graphs.h"

#include "base/log.h"
#include "kernels/cuda_device.h"

#include <algorithm>
#include <utility>

namespace pitstop::tp_worker {

Result<> StepGraphs::run(
    const Shape& shape, kernels::Stream stream, const std::function<Result<>()>& enqueue
) {
    const auto found = by_shape_.find(shape);
    if (found == by_shape_.end()) {
        if (by_shape_.size() < kGraphsMax) by_shape_.emplace(shape, std::nullopt);
        return enqueue();
    }
    std::optional<kernels::DeviceGraph>& graph = found->second;
    if (!graph && has_room()) RETURN_IF_ERROR(capture(graph, stream, enqueue));
    if (!graph) return enqueue();
    graph->launch(stream);
    ++num_launched_;
    return Ok{};
}

bool StepGraphs::has_room() {
    if (is_full_ || bytes_ < bytes_max_) return !is_full_;
    is_full_ = true;
    spdlog::warn(
        "further steps run without graphs: {} graphs take some {} bytes; {} are set aside for them",
        num_graphs_,
        bytes_,
        bytes_max_
    );
    return false;
}

// Leaves `graph` empty where the device has no memory for it.
Result<> StepGraphs::capture(
    std::optional<kernels::DeviceGraph>& graph,
    kernels::Stream stream,
    const std::function<Result<>()>& enqueue
) {
    const std::int64_t free_before = kernels::device_memory_info().free_bytes;
    kernels::DeviceGraph::begin_capture(stream);
    const Result<> enqueued = enqueue();
    Result<kernels::DeviceGraph> captured = kernels::DeviceGraph::end_capture(stream);
    RETURN_IF_ERROR(enqueued);
    if (!captured) {
        is_full_ = true;
        spdlog::warn("further steps run without graphs: {}", captured.error().message);
        return Ok{};
    }
    graph = *std::move(captured);
    ++num_graphs_;
    const std::int64_t taken = free_before - kernels::device_memory_info().free_bytes;
    bytes_ += std::clamp<std::int64_t>(taken, 0, graph->num_nodes() * kNodeBytesMax);
    spdlog::info(
        "a graph of {} kernels; {} graphs take some {} bytes",
        graph->num_nodes(),
        num_graphs_,
        bytes_
    );
    return Ok{};
}

}  // namespace pitstop::tp_worker
