#include "tp_worker/model/step_graphs.h"

#include "base/check.h"
#include "base/log.h"
#include "kernels/runtime/cuda_device.h"

#include <algorithm>
#include <utility>

namespace pitstop::tp_worker {

Result<> StepGraphs::run(const Shape& shape, kernels::Stream stream, const Enqueue& enqueue) {
    const auto found = by_shape_.find(shape);
    if (found == by_shape_.end()) {
        if (is_full_ || by_shape_.size() >= kGraphsMax) return enqueue();
        by_shape_.emplace(shape, Steps{.enqueue = enqueue});
        wanted_.push_back(shape);
        return enqueue();
    }
    if (!found->second.graph) return enqueue();
    found->second.graph->launch(stream);
    ++num_launched_;
    return Ok{};
}

Result<> StepGraphs::make_one(kernels::Stream stream) {
    CHECK(wants_one());
    if (!has_room()) {
        stop_making();
        return Ok{};
    }
    const Shape shape = take_wanted();
    if (shape.has_prompts() && bytes_with_prompts_ >= bytes_max_ / kPromptShare) return Ok{};
    return make(shape, stream);
}

StepGraphs::Shape StepGraphs::take_wanted() {
    auto first = std::ranges::find_if_not(wanted_, &Shape::has_prompts);
    if (first == wanted_.end()) first = wanted_.begin();
    const Shape shape = *first;
    wanted_.erase(first);
    return shape;
}

bool StepGraphs::has_room() {
    if (bytes_ < bytes_max_) return true;
    spdlog::warn(
        "further steps run without graphs: {} graphs take some {} bytes; {} are set aside for them",
        num_graphs_,
        bytes_,
        bytes_max_
    );
    return false;
}

void StepGraphs::stop_making() {
    is_full_ = true;
    wanted_.clear();
}

StepGraphs::Captured StepGraphs::capture(const Enqueue& enqueue, kernels::Stream stream) const {
    kernels::DeviceGraph::begin_capture(stream, early_starts_);
    Result<> enqueued = enqueue();
    Result<kernels::DeviceGraph> graph = kernels::DeviceGraph::end_capture(stream);
    return {std::move(enqueued), std::move(graph)};
}

// Leaves the shape without a graph if the device has no memory for one, or CUDA refuses it.
Result<> StepGraphs::make(const Shape& shape, kernels::Stream stream) {
    using EarlyStarts = kernels::DeviceGraph::EarlyStarts;
    Steps& steps = by_shape_.at(shape);
    const std::int64_t free_before = kernels::device_memory_info().free_bytes;
    Captured captured = capture(steps.enqueue, stream);
    const bool is_refused =
        !captured.graph && captured.graph.error().code == ErrorCode::kUnsupported;
    if (captured.enqueued && is_refused && early_starts_ == EarlyStarts::kAllowed) {
        spdlog::warn(
            "graphs are made without early starts of their kernels: {}",
            captured.graph.error().message
        );
        early_starts_ = EarlyStarts::kNone;
        captured = capture(steps.enqueue, stream);
    }
    RETURN_IF_ERROR(captured.enqueued);
    if (!captured.graph) {
        spdlog::warn("further steps run without graphs: {}", captured.graph.error().message);
        stop_making();
        return Ok{};
    }
    steps.graph = *std::move(captured.graph);
    steps.enqueue = nullptr;
    ++num_graphs_;
    const std::int64_t taken = free_before - kernels::device_memory_info().free_bytes;
    const std::int64_t charged =
        std::clamp<std::int64_t>(taken, 0, steps.graph->num_nodes() * kNodeBytesMax);
    bytes_ += charged;
    if (shape.has_prompts()) bytes_with_prompts_ += charged;
    spdlog::info(
        "a graph of {} kernels; {} graphs take some {} bytes",
        steps.graph->num_nodes(),
        num_graphs_,
        bytes_
    );
    return Ok{};
}

}  // namespace pitstop::tp_worker
