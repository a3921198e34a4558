// Keeps graphs of a rank's steps of decodes and of its small steps with prompts: what a step of a
// shape that may come again enqueues is captured, and then launched as a whole, for the host's cost
// of one launch in place of some hundreds.
//
// The first step of a shape runs as it is, which has the driver load what it needs, and so do those
// that follow until the rank has time to make the graph: no step makes one, and a plan that comes
// while one is made waits for that one at most. A graph stays valid for as long as the arenas stay
// where they are: through updates, rollbacks, releases and resumes. Each copy of the weights has
// its own.
//
// Thread: the stream's.
// Bounded: kGraphsMax, and by the device's memory that they may take; shapes beyond run without.
#pragma once

#include "base/result.h"
#include "kernels/device_graph.h"

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
    // A graph is charged so much for each of its kernels and copies at most: what is free of the
    // device's memory goes down by what others take meanwhile, too, and their gigabytes must not
    // end the making of graphs. A node's parameters are 4 KiB at most, and its launch's description
    // is smaller.
    static constexpr std::int64_t kNodeBytesMax = 64 << 10;

    // Those of steps with prompts may take one part in so many of the memory: they have many shapes
    // and come first, and decodes, which come again and again, need room for theirs.
    static constexpr std::int64_t kPromptShare = 4;

    // None is made once they have taken so much of the device's memory: by one graph at most they
    // take more.
    explicit StepGraphs(std::int64_t bytes_max) : bytes_max_(bytes_max) {}

    // Holds what the launches of a step follow from; the lengths of its requests are not among it.
    struct Shape {
        const void* weights = nullptr;  // those of the copy that the step uses
        const void* inputs = nullptr;   // the place of its arrays
        std::int64_t num_tokens = 0;    // with padding, as the next two
        std::int64_t num_rows = 0;
        std::int64_t num_logit_rows = 0;
        [[nodiscard]] bool has_prompts() const { return num_tokens > num_rows; }
        auto operator<=>(const Shape&) const = default;
    };

    using Enqueue = std::function<Result<>()>;
    // Runs what `enqueue` enqueues on the stream. REQUIRES: that is the same for every step of the
    // shape, in the same memory, and does not wait; it may be called until the graph is made.
    // Errors: enqueue's.
    Result<> run(const Shape& shape, kernels::Stream stream, const Enqueue& enqueue);

    // Tells whether a shape ran whose graph can be made.
    [[nodiscard]] bool wants_one() const { return !wanted_.empty(); }
    // Makes the one that is wanted first, decodes before others, if there is room for it; nothing
    // runs. REQUIRES: wants_one(). Errors: that enqueue's.
    Result<> make_one(kernels::Stream stream);

    [[nodiscard]] std::int64_t num_graphs() const { return num_graphs_; }
    // What is free of the device's memory went down by so much while graphs were made, as far as
    // that can be theirs (kNodeBytesMax).
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    [[nodiscard]] std::int64_t bytes_max() const { return bytes_max_; }
    // Counts the steps that were launched as a graph.
    [[nodiscard]] std::int64_t num_launched() const { return num_launched_; }

  private:
    struct Steps {
        Enqueue enqueue{};  // until there is a graph
        std::optional<kernels::DeviceGraph> graph{};
    };
    // Warns when there is no more.
    [[nodiscard]] bool has_room();
    void stop_making();
    [[nodiscard]] Shape take_wanted();
    Result<> capture(const Shape& shape, kernels::Stream stream);

    std::map<Shape, Steps> by_shape_{};  // those that ran
    std::vector<Shape> wanted_{};        // those without a graph, as they came
    std::int64_t bytes_max_;
    bool is_full_ = false;  // they have what they may take, or the device had no more
    std::int64_t num_graphs_ = 0;
    std::int64_t bytes_ = 0;
    std::int64_t bytes_with_prompts_ = 0;  // the part that steps with prompts have
    std::int64_t num_launched_ = 0;
};

}  // namespace pitstop::tp_worker
