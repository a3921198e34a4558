// The graphs of a rank's steps of decodes and of its small steps with prompts or drafts. The work
// of a step whose shape may recur is captured, and then launched as a whole, so that the host pays
// for one launch instead of hundreds.
//
// The first step of a shape runs without a graph, so that the driver loads all kernels. Later steps
// do too, until the rank has time to make the graph. No step makes a graph; a plan that arrives
// meanwhile waits for at most one. A graph stays valid as long as the arenas stay in place: through
// updates, rollbacks, releases and resumes. Each copy of the weights has its own.
//
// Thread: the stream's.
// Bounded: kGraphsMax, and by the device memory that they may use; further shapes run without.
#pragma once

#include "base/result.h"
#include "kernels/runtime/device_graph.h"

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace pitstop::tp_worker {

class StepGraphs {
  public:
    static constexpr std::size_t kGraphsMax = 256;
    // The most that a graph is charged for each of its kernels and copies. Other processes also
    // reduce the device's free memory, and their use must not keep the rank from making graphs. A
    // node's parameters are at most 4 KiB, and its launch's description is smaller.
    static constexpr std::int64_t kNodeBytesMax = 64 << 10;

    // One part in this many of the graphs' memory is for steps with prompts or drafts. Such steps
    // have many shapes and run first; decodes recur most, and need room for their graphs.
    static constexpr std::int64_t kPromptShare = 4;

    // No graph is made once graphs use `bytes_max` of the device's memory; one graph may exceed it.
    explicit StepGraphs(std::int64_t bytes_max) : bytes_max_(bytes_max) {}

    // The properties of a step that its launches depend on; the requests' lengths are
    // not among them.
    struct Shape {
        const void* weights = nullptr;  // of the copy that the step uses
        const void* inputs = nullptr;   // the place of the step's arrays
        std::int64_t num_tokens = 0;    // with padding, as the next two members
        std::int64_t num_rows = 0;
        std::int64_t num_logit_rows = 0;
        bool has_adapters = false;  // some row has an adapter, whichever row
        [[nodiscard]] bool has_prompts() const { return num_tokens != num_rows; }
        auto operator<=>(const Shape&) const = default;
    };

    using Enqueue = std::function<Result<>()>;
    // Runs what `enqueue` enqueues on the stream. REQUIRES: `enqueue` enqueues the same work for
    // every step of the shape, in the same memory, and does not wait. `enqueue` may be called until
    // the graph is made. Errors: enqueue's.
    Result<> run(const Shape& shape, kernels::Stream stream, const Enqueue& enqueue);

    // Returns whether a shape ran whose graph can be made.
    [[nodiscard]] bool wants_one() const { return !wanted_.empty(); }
    // Makes one graph, if there is room, and runs nothing. Graphs of decodes come first, then the
    // one that was wanted first. REQUIRES: wants_one(). Errors: those of the shape's `enqueue`.
    Result<> make_one(kernels::Stream stream);

    [[nodiscard]] std::int64_t num_graphs() const { return num_graphs_; }
    // Returns by how much the device's free memory fell while graphs were made, as far as graphs
    // can be the cause (kNodeBytesMax).
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    [[nodiscard]] std::int64_t bytes_max() const { return bytes_max_; }
    // Returns how many steps were launched as a graph.
    [[nodiscard]] std::int64_t num_launched() const { return num_launched_; }

  private:
    struct Steps {
        Enqueue enqueue{};  // until the graph exists
        std::optional<kernels::DeviceGraph> graph{};
    };
    // Warns when there is no more room.
    [[nodiscard]] bool has_room();
    void stop_making();
    [[nodiscard]] Shape take_wanted();
    struct Captured {
        Result<> enqueued = Ok{};
        Result<kernels::DeviceGraph> graph{kernels::DeviceGraph{}};
    };
    Result<> make(const Shape& shape, kernels::Stream stream);
    [[nodiscard]] Captured capture(const Enqueue& enqueue, kernels::Stream stream) const;

    std::map<Shape, Steps> by_shape_{};  // shapes that ran
    std::vector<Shape> wanted_{};        // shapes without a graph, in order of arrival
    std::int64_t bytes_max_;
    kernels::DeviceGraph::EarlyStarts early_starts_ = kernels::DeviceGraph::EarlyStarts::kAllowed;
    bool is_full_ = false;  // no room is left for graphs, or the device had no more memory
    std::int64_t num_graphs_ = 0;
    std::int64_t bytes_ = 0;
    std::int64_t bytes_with_prompts_ = 0;  // the part of steps with prompts
    std::int64_t num_launched_ = 0;
};

}  // namespace pitstop::tp_worker
