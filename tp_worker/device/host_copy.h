// Holds a second version of the weights in page-locked host memory, beside the one copy that a GPU
// has room for: it is filled there, and exchange() brings it up and what was live down into its
// place, by chunks, on both directions of the bus at once. So nothing is lost: another exchange()
// is the way back.
//
//   filled     [chunk 0] [chunk 1] ... [chunk n-1] [free]      [free]
//   exchanged  [free]    [free]    [chunk 0] ...               [chunk n-1]
//
// A chunk that comes down goes where one lay that was sent up two chunks before; so the version
// moves by two chunks each time, there and back.
//
// Owns:    the memory, a stream for each direction.
// Thread:  one at a time.
// Bounded: kChunkBytesMax * 2 more than the version.
#pragma once

#include "base/result.h"
#include "kernels/device_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace pitstop::tp_worker {

class HostCopy {
  public:
    // Takes 1.2 ms at 55 GB/s, a PCIe 5 link's rate: long against what a copy's start costs.
    static constexpr std::int64_t kChunkBytesMax = std::int64_t{64} << 20;

    // This is for a version of so many bytes. It takes no memory yet.
    static Result<HostCopy> make(std::int64_t bytes);
    // Returns the page-locked memory that it takes.
    [[nodiscard]] static std::int64_t host_bytes_of(std::int64_t bytes);

    // Takes memory, all zeros, unless it has some.
    // Errors: kResourceExhausted, with the bytes.
    Result<> commit();
    // Gives the memory back; what it held is gone.
    void release() { memory_ = {}; }
    [[nodiscard]] std::int64_t host_bytes() const { return memory_.bytes(); }

    // Says where the version lies, which is another place after each exchange(). REQUIRES: there is
    // memory.
    [[nodiscard]] std::byte* data() const { return memory_.data() + first_slot_ * chunk_bytes_; }

    // Brings what is here to `gpu`, and what is there here, after what `steps` has been given, and
    // returns when it is done. REQUIRES: there is memory.
    void exchange(std::byte* gpu, kernels::Stream steps);

  private:
    static constexpr std::int64_t kFreeSlots = 2;
    static constexpr std::size_t kEvents = 4;  // more than are waited for later on
    HostCopy() = default;

    std::int64_t bytes_ = 0;
    std::int64_t chunk_bytes_ = 0;
    std::int64_t num_chunks_ = 0;
    std::int64_t first_slot_ = 0;  // that of the version's first chunk: 0 or kFreeSlots
    kernels::PinnedBuffer memory_{};
    kernels::DeviceStream up_{};
    kernels::DeviceStream down_{};
    kernels::DeviceEvent is_before_{};
    std::array<kernels::DeviceEvent, kEvents> is_up_{};    // by chunk, in turn
    std::array<kernels::DeviceEvent, kEvents> is_down_{};  // likewise
};

}  // namespace pitstop::tp_worker
