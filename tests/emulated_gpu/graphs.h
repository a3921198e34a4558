// Graphs: work that a stream captures instead of running it, and that later runs as a whole.
// Source: CUDA C++ Programming Guide, "CUDA Graphs"; CUDA Runtime API, "Stream Management" and
// "Graph Management" for the calls that fail while a stream captures.
//
// Thread: one at a time captures.
#pragma once

#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/streams.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace pitstop::emulator {

struct GraphNode {
    Work work{};
    std::vector<std::size_t> after{};  // nodes that are done before it begins
    bool starts_early = false;         // the previous node lets it start (overlap.h)
};

struct Graph {
    std::vector<GraphNode> nodes{};
};

// Bytes of the GPU's memory per node of an executable graph: a driver takes some, and no page says
// how much.
inline constexpr std::size_t kGraphNodeBytes = 1024;

// The result of cudaGraphInstantiate. Its launches run one after the other.
struct GraphExecutable {
    std::shared_ptr<const Graph> graph{};
    std::shared_ptr<Physical> memory{};
    Point last_launch{};
};

// The threads whose unsafe calls a capture forbids: all, only the one that began it, or none.
enum class CaptureMode : std::uint8_t { kGlobal, kThreadLocal, kRelaxed };

struct Capture {
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    const Stream* origin = nullptr;
    std::atomic<bool> is_invalid = false;  // set by any thread
    CaptureMode mode = CaptureMode::kGlobal;
    std::thread::id thread{};                                   // began the capture
    std::map<const Stream*, std::vector<std::size_t>> tails{};  // the next node comes after these
    std::vector<std::weak_ptr<Stream>> streams{};
};

// Invalidates the captures of this process whose mode forbids the calling thread an unsafe call.
// True: there was one, and the call fails. Source: cudaThreadExchangeStreamCaptureMode.
[[nodiscard]] bool invalidate_captures();

// Invalidates the captures in streams of this GPU, whatever their mode and thread. True: there was
// one.
enum class WhichStreams : std::uint8_t { kAll, kBlocking };
[[nodiscard]] bool invalidate_captures_of(int gpu, WhichStreams which);

void begin_capture(const std::shared_ptr<Stream>& stream, CaptureMode mode);
// Makes the stream join the capture in which an event was recorded, after these nodes.
void join_capture(
    const std::shared_ptr<Stream>& stream,
    const std::shared_ptr<Capture>& capture,
    const std::vector<std::size_t>& after
);
// Adds `work` after everything that the stream has captured.
void add_node(Stream& stream, Work work);
// Returns 0 and the graph, or the error with which the capture ends.
[[nodiscard]] int end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph);

// The work of one launch: nodes run in any order that their edges allow, and take turns.
[[nodiscard]] Work launch_work(const std::shared_ptr<const Graph>& graph);
// Returns whether an executable of `from` may be updated to `to`: the same nodes and edges.
[[nodiscard]] bool is_same_topology(const Graph& from, const Graph& to);

}  // namespace pitstop::emulator
