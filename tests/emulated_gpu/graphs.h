// Graphs: what a stream captures in place of running it, and what runs later as a whole. Source:
// CUDA C++ Programming Guide, "CUDA Graphs"; CUDA Runtime API, "Stream Management" and "Graph
// Management" for what fails while a stream captures.
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
    bool starts_early = false;         // not done: the one before lets it start (overlap.h)
};

struct Graph {
    std::vector<GraphNode> nodes{};
};

// Of the GPU's memory that an executable graph takes, by node: a driver takes some, and no page
// says how much.
inline constexpr std::size_t kGraphNodeBytes = 1024;

// Of cudaGraphInstantiate. Its launches run one after the other.
struct GraphExecutable {
    std::shared_ptr<const Graph> graph{};
    std::shared_ptr<Physical> memory{};
    Point last_launch{};
};

// Whose unsafe calls a capture forbids: everybody's, those of the thread that began it, nobody's.
enum class CaptureMode : std::uint8_t { kGlobal, kThreadLocal, kRelaxed };

struct Capture {
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    const Stream* origin = nullptr;
    std::atomic<bool> is_invalid = false;  // by any thread
    CaptureMode mode = CaptureMode::kGlobal;
    std::thread::id thread{};                                   // that began it
    std::map<const Stream*, std::vector<std::size_t>> tails{};  // the next node comes after these
    std::vector<std::weak_ptr<Stream>> streams{};
};

// Captures under way in this process whose mode forbids the calling thread an unsafe call; each is
// invalid from then on. True: there was one, and the call fails. Source:
// cudaThreadExchangeStreamCaptureMode.
[[nodiscard]] bool invalidate_captures();

// Those in streams of this GPU, whatever their mode and thread; each is invalid from then on. True:
// there was one.
enum class WhichStreams : std::uint8_t { kAll, kBlocking };
[[nodiscard]] bool invalidate_captures_of(int gpu, WhichStreams which);

void begin_capture(const std::shared_ptr<Stream>& stream, CaptureMode mode);
// The stream joins the capture of an event recorded in it, behind these nodes.
void join_capture(
    const std::shared_ptr<Stream>& stream,
    const std::shared_ptr<Capture>& capture,
    const std::vector<std::size_t>& after
);
// Puts `work` behind what the stream has captured.
void add_node(Stream& stream, Work work);
// 0 and the graph, or the error with which the capture ends.
[[nodiscard]] int end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph);

// The work that a launch is: nodes run in any order that their edges allow, taking turns.
[[nodiscard]] Work launch_work(const std::shared_ptr<const Graph>& graph);
// Whether an executable of `from` may be updated to `to`: the same nodes and edges.
[[nodiscard]] bool is_same_topology(const Graph& from, const Graph& to);

}  // namespace pitstop::emulator
