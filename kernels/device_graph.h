// Wraps a CUDA graph: work that was enqueued once and runs again as a whole, for what one launch
// costs. No CUDA type is named.
//
// A graph keeps the addresses and the launch extents that it was captured with; what lies at the
// addresses may change between launches. Only what is called by one thread is captured: others may
// allocate meanwhile.
//
// Source: CUDA C++ Programming Guide, "CUDA Graphs", "Creating a Graph Using Stream Capture".
// Thread: one at a time, that of the stream.
#pragma once

#include "base/result.h"
#include "kernels/tensor.h"

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

    // What is enqueued on `stream` from now on is captured in place of running, up to
    // end_capture(). REQUIRES: nothing waits for it meanwhile, nothing is allocated by this thread.
    static void begin_capture(Stream stream);
    // Errors: kResourceExhausted, the device has no memory for the graph. What was captured does
    // not run by itself.
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
