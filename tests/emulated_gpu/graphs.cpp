#include "tests/emulated_gpu/graphs.h"

#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
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

// One launch, node by node.
class GraphRun {
  public:
    explicit GraphRun(std::shared_ptr<const Graph> graph)
        : graph_(std::move(graph)),
          num_waited_for_(graph_->nodes.size()),
          steps_(graph_->nodes.size()),
          num_left_(graph_->nodes.size()) {
        for (std::size_t i = 0; i < graph_->nodes.size(); ++i) {
            num_waited_for_[i] = graph_->nodes[i].after.size();
            if (num_waited_for_[i] == 0) ready_.push_back(i);
        }
    }

    bool step() {
        if (ready_.empty()) return num_left_ == 0;
        const std::size_t chosen = random_.below(ready_.size());
        const std::size_t node = ready_[chosen];
        const Work& work = graph_->nodes[node].work;
        open_memory_for(work.gpu);
        if (!steps_[node] && work.begin) steps_[node] = work.begin();
        if (steps_[node] && !steps_[node]()) return false;
        ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(chosen));
        for (std::size_t i = 0; i < graph_->nodes.size(); ++i) {
            const auto num =
                std::count(graph_->nodes[i].after.begin(), graph_->nodes[i].after.end(), node);
            if (num == 0) continue;
            num_waited_for_[i] -= static_cast<std::size_t>(num);
            if (num_waited_for_[i] == 0) ready_.push_back(i);
        }
        return --num_left_ == 0;
    }

  private:
    std::shared_ptr<const Graph> graph_;
    std::vector<std::size_t> num_waited_for_;
    std::vector<Step> steps_;
    std::vector<std::size_t> ready_{};
    std::size_t num_left_;
    Random random_{settings().seed};
};

}  // namespace

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

bool invalidate_blocking_captures(int gpu) {
    Captures& all = captures();
    const std::scoped_lock lock(all.mutex);
    bool found = false;
    for (const auto& weak : all.all) {
        const std::shared_ptr<Capture> capture = weak.lock();
        if (capture == nullptr) continue;
        for (const auto& weak_stream : capture->streams) {
            const std::shared_ptr<Stream> stream = weak_stream.lock();
            if (stream == nullptr || stream->capture != capture || stream->gpu != gpu ||
                stream->kind != StreamKind::kBlocking)
                continue;
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
    capture.graph->nodes.push_back({std::move(work), tails});
    tails = {capture.graph->nodes.size() - 1};
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
            return a.work.kind == b.work.kind && a.after == b.after;
        }
    );
}

}  // namespace pitstop::emulator
