// The work of a GPU, and when it runs. Work is put into streams; one thread for all GPUs of this
// process executes it later: the work of one stream in order, that of different streams in any
// order that events allow, kernels by blocks and copies by pieces, in turns. A seed and a policy
// decide the order (settings.h). Source: CUDA C++ Programming Guide, "Asynchronous Concurrent
// Execution".
//
// A context that was ended by an access to closed memory or an ordered fault has a sticky error:
// nothing runs any more, and every wait returns the error.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pitstop::emulator {

struct Stream;
struct Capture;
struct Overlap;

// Everything in `stream` up to the work with this number, from 1. No stream: nothing.
struct Point {
    std::shared_ptr<Stream> stream{};
    std::uint64_t number = 0;
};

inline constexpr int kEveryGpu = -1;  // copy engines reach all GPUs

// Executes a part; true when it was the last.
using Step = std::function<bool()>;

enum class WorkKind : std::uint8_t { kKernel, kCopy, kFill, kHost, kMarker, kGraph };

struct Work {
    WorkKind kind = WorkKind::kMarker;
    std::string name{};
    int gpu = kEveryGpu;         // the GPU whose memory it uses: kernels use only their own
    std::vector<Point> after{};  // done before it begins
    std::function<bool()>
        may_begin{};  // an additional condition, polled again and again. Null: at any time
    std::function<Step()> begin{};  // null: there is nothing to do
    // For a kernel: starts it with the overlap of its graph's kernels.
    std::function<Step(const std::shared_ptr<Overlap>&)> begin_beside{};
    bool may_start_early = false;  // only for a kernel in a graph, never in a stream
};

enum class StreamKind : std::uint8_t { kLegacy, kBlocking, kNonBlocking };

struct Stream {
    int gpu = 0;
    int priority = 0;  // the lowest runs first
    StreamKind kind = StreamKind::kNonBlocking;
    std::deque<Work> queue{};
    Step running{};  // executes the first work in the queue, if that has begun
    std::uint64_t num_enqueued = 0;
    std::uint64_t num_done = 0;
    std::uint64_t num_demanded = 0;  // a thread waits until this many are done
    std::shared_ptr<Capture> capture{};
};

// Streams of the current GPU. A handle is the address of its Stream.
[[nodiscard]] std::shared_ptr<Stream> add_stream(int gpu, int priority, StreamKind kind);
// The stream's remaining work is still executed.
void remove_stream(const std::shared_ptr<Stream>& stream);
// Returns a handle's stream; null if there is none. A null handle names the legacy default stream.
[[nodiscard]] std::shared_ptr<Stream> find_stream(const void* handle, int gpu);
[[nodiscard]] std::vector<std::shared_ptr<Stream>> streams_of(int gpu);

// Enqueues the work, or makes it a node of the graph that the stream captures (graphs.h).
Point enqueue(const std::shared_ptr<Stream>& stream, Work work);
[[nodiscard]] Point end_of(const std::shared_ptr<Stream>& stream);

// Each poll makes it likelier that the work is done: a polling thread makes progress, however late
// the policy.
[[nodiscard]] bool is_done(const Point& point);
// For a step that found nothing to do, because other work has to come first, here or in another
// process: the next turn may go to any stream, however late the policy.
void let_other_works_run();
// The calling thread is in a host function, which may not call CUDA.
[[nodiscard]] bool is_in_host_function();
class InHostFunction {
  public:
    InHostFunction();
    ~InHostFunction();
    InHostFunction(const InHostFunction&) = delete;
    InHostFunction& operator=(const InHostFunction&) = delete;
};
// Returns the context's sticky error, or 0.
[[nodiscard]] int wait_for(const std::vector<Point>& points);

// Milliseconds of the GPU's clock, which events read. Work may report that it took longer than it
// did.
[[nodiscard]] double gpu_clock_ms();
void advance_gpu_clock(double ms);

// The context's sticky error; 0: none. The first one stays.
[[nodiscard]] int sticky_error();
void end_context(int error);

}  // namespace pitstop::emulator
