#include "tests/emulated_gpu/graphs.h"

#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/overlap.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace pitstop::emulator {
namespace {

struct Captures {
    std::mutex mutex{};
    std::vector<std::weak_ptr<Capture>> all{};
};
Captures& captures() {
    static Captures* const instance = new Captures;
    return *instance;
}

// Shared by all launches, whose orders may differ.
Random& choices() {
    static Random random(settings().seed);
    return random;
}

std::atomic<std::int64_t> early_starts = 0;

// One launch, node by node.
class GraphRun {
  public:
    explicit GraphRun(std::shared_ptr<const Graph> graph)
        : graph_(std::move(graph)), runs_(graph_->nodes.size()), num_left_(graph_->nodes.size()) {
        find_ready();
    }

    bool step() {
        if (ready_.empty()) return num_left_ == 0;
        const std::size_t chosen = choose();
        const std::size_t node = ready_[chosen];
        NodeRun& run = runs_[node];
        open_memory_for(graph_->nodes[node].work.gpu);
        if (!run.step) begin(node);
        const bool could_next_start = run.overlap->may_next_start;
        run.is_done = !run.step || run.step();
        if (run.is_done) {
            ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(chosen));
            --num_left_;
        }
        const bool may_next_start = run.overlap->may_next_start && !could_next_start;
        if (may_next_start && !run.is_done) hold(node);
        if (may_next_start || run.is_done) find_ready();
        return num_left_ == 0;
    }

  private:
    struct NodeRun {
        Step step{};
        std::shared_ptr<Overlap> overlap = std::make_shared<Overlap>();
        bool is_ready = false;
        bool is_done = false;
    };

    void begin(std::size_t node) {
        const GraphNode& of = graph_->nodes[node];
        NodeRun& run = runs_[node];
        if (of.starts_early) {
            const NodeRun& before = runs_[of.after[0]];
            if (!before.is_done) ++early_starts;
            run.overlap->is_previous_done = [&before] { return before.is_done; };
        }
        if (of.work.begin_beside) {
            run.step = of.work.begin_beside(run.overlap);
        } else if (of.work.begin) {
            run.step = of.work.begin();
        }
    }

    // A kernel that has let the next one start may stand still while that one gets far ahead.
    void hold(std::size_t node) {
        constexpr std::uint64_t kOneIn = 4;
        constexpr std::uint64_t kStepsMax = 64;
        if (choices().below(kOneIn) != 0) return;
        held_node_ = node;
        held_steps_ = 1 + choices().below(kStepsMax);
    }

    std::size_t choose() {
        const std::size_t chosen = choices().below(ready_.size());
        if (held_steps_ == 0) return chosen;
        --held_steps_;
        const bool is_held = ready_[chosen] == held_node_;
        return is_held ? (chosen + 1) % ready_.size() : chosen;
    }

    bool may_begin(const GraphNode& node) const {
        return std::ranges::all_of(node.after, [&](std::size_t before) {
            const NodeRun& run = runs_[before];
            return run.is_done || (node.starts_early && run.overlap->may_next_start);
        });
    }

    void find_ready() {
        for (std::size_t i = 0; i < runs_.size(); ++i) {
            if (runs_[i].is_ready || !may_begin(graph_->nodes[i])) continue;
            runs_[i].is_ready = true;
            ready_.push_back(i);
        }
    }

    std::shared_ptr<const Graph> graph_;
    std::vector<NodeRun> runs_;
    std::vector<std::size_t> ready_{};
    std::size_t num_left_;
    std::size_t held_node_ = 0;
    std::uint64_t held_steps_ = 0;
};

}  // namespace

std::int64_t num_early_starts() { return early_starts; }

bool invalidate_captures() {
    Captures& all = captures();
    const std::scoped_lock lock(all.mutex);
    bool found = false;
    for (const auto& weak : all.all) {
        const std::shared_ptr<Capture> capture = weak.lock();
        if (capture == nullptr || capture->mode == CaptureMode::kRelaxed) continue;
        if (capture->mode == CaptureMode::kThreadLocal &&
            capture->thread != std::this_thread::get_id())
            continue;
        capture->is_invalid = true;
        found = true;
    }
    return found;
}

bool invalidate_captures_of(int gpu, WhichStreams which) {
    Captures& all = captures();
    const std::scoped_lock lock(all.mutex);
    bool found = false;
    for (const auto& weak : all.all) {
        const std::shared_ptr<Capture> capture = weak.lock();
        if (capture == nullptr) continue;
        for (const auto& weak_stream : capture->streams) {
            const std::shared_ptr<Stream> stream = weak_stream.lock();
            if (stream == nullptr || stream->capture != capture || stream->gpu != gpu) continue;
            if (which == WhichStreams::kBlocking && stream->kind != StreamKind::kBlocking) continue;
            capture->is_invalid = true;
            found = true;
        }
    }
    return found;
}

void begin_capture(const std::shared_ptr<Stream>& stream, CaptureMode mode) {
    auto capture = std::make_shared<Capture>();
    capture->origin = stream.get();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    join_capture(stream, capture, {});
    Captures& all = captures();
    const std::scoped_lock lock(all.mutex);
    std::erase_if(all.all, [](const auto& weak) { return weak.expired(); });
    all.all.push_back(capture);
}

void join_capture(
    const std::shared_ptr<Stream>& stream,
    const std::shared_ptr<Capture>& capture,
    const std::vector<std::size_t>& after
) {
    if (stream->capture != capture) {
        stream->capture = capture;
        capture->streams.push_back(stream);
    }
    std::vector<std::size_t>& tails = capture->tails[stream.get()];
    for (const std::size_t node : after) {
        if (std::find(tails.begin(), tails.end(), node) == tails.end()) tails.push_back(node);
    }
}

void add_node(Stream& stream, Work work) {
    Capture& capture = *stream.capture;
    std::vector<std::size_t>& tails = capture.tails[&stream];
    std::vector<GraphNode>& nodes = capture.graph->nodes;
    const bool starts_early =
        work.may_start_early && tails.size() == 1 && nodes[tails[0]].work.kind == WorkKind::kKernel;
    nodes.push_back({std::move(work), tails, starts_early});
    tails = {nodes.size() - 1};
}

int end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph) {
    constexpr int kInvalidated = 901, kUnmatched = 903, kUnjoined = 904, kWrongThread = 908;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (capture == nullptr || capture->origin != stream.get()) return kUnmatched;
    if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id())
        return kWrongThread;
    for (const auto& weak : capture->streams) {
        if (const std::shared_ptr<Stream> joined = weak.lock()) joined->capture = nullptr;
    }
    if (capture->is_invalid) return kInvalidated;
    const std::vector<GraphNode>& nodes = capture->graph->nodes;
    std::vector<bool> is_behind(nodes.size());
    for (const std::size_t node : capture->tails[stream.get()]) is_behind[node] = true;
    for (std::size_t i = nodes.size(); i-- > 0;) {
        if (!is_behind[i]) continue;
        for (const std::size_t node : nodes[i].after) is_behind[node] = true;
    }
    for (const auto& [other, tails] : capture->tails) {
        for (const std::size_t node : tails) {
            if (!is_behind[node]) return kUnjoined;
        }
    }
    *graph = capture->graph;
    return 0;
}

Work launch_work(const std::shared_ptr<const Graph>& graph) {
    return {.kind = WorkKind::kGraph, .name = "graph", .begin = [graph] {
                auto run = std::make_shared<GraphRun>(graph);
                return Step([run] { return run->step(); });
            }};
}

bool is_same_topology(const Graph& from, const Graph& to) {
    return std::equal(
        from.nodes.begin(),
        from.nodes.end(),
        to.nodes.begin(),
        to.nodes.end(),
        [](const GraphNode& a, const GraphNode& b) {
            return a.work.kind == b.work.kind && a.after == b.after &&
                   a.starts_early == b.starts_early;
        }
    );
}

}  // namespace pitstop::emulator
