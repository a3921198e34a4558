// A CUDA graph: work that was enqueued once and runs again as a whole, at the cost of one launch.
// Names no CUDA type.
//
// A graph keeps the addresses and launch extents from its capture; the data at the addresses
// may change between launches. Only one thread's calls are captured: other threads may
// allocate meanwhile.
//
// Source: CUDA C++ Programming Guide, "CUDA Graphs", "Creating a Graph Using Stream Capture".
// Thread: one at a time, that of the stream.
#pragma once

#include "base/result.h"
#include "kernels/runtime/stream.h"

#include <cstdint>
#include <utility>

namespace pitstop::kernels {

class DeviceGraph {
  public:
    DeviceGraph() = default;
    ~DeviceGraph();
    DeviceGraph(DeviceGraph&& other) noexcept { swap(other); }
    DeviceGraph& operator=(DeviceGraph&& other) noexcept {
        swap(other);
        return *this;
    }

    // Whether kernels of the graph may begin before the kernel before them has ended.
    enum class EarlyStarts : std::uint8_t { kNone, kAllowed };

    // Work enqueued on `stream` from now on is captured instead of run, up to end_capture().
    // REQUIRES: nothing waits for the stream meanwhile, and this thread allocates nothing.
    static void begin_capture(Stream stream, EarlyStarts early_starts = EarlyStarts::kAllowed);
    // Errors: kResourceExhausted if the device has no memory for the graph; kUnsupported if CUDA
    // refuses the capture or the graph. Captured work does not run by itself.
    [[nodiscard]] static Result<DeviceGraph> end_capture(Stream stream);

    // Enqueues the work. REQUIRES: end_capture() made it.
    void launch(Stream stream) const;

    [[nodiscard]] std::int64_t num_nodes() const { return num_nodes_; }

  private:
    void swap(DeviceGraph& other) {
        std::swap(handle_, other.handle_);
        std::swap(num_nodes_, other.num_nodes_);
    }
    void* handle_ = nullptr;
    std::int64_t num_nodes_ = 0;  // kernels and copies
};

}  // namespace pitstop::kernels
