// A second version of the weights in page-locked host memory, for a GPU with room for one copy. The
// version is filled there; exchange() swaps it with the live one, in chunks, in both directions of
// the bus at once. So nothing is lost: another exchange() swaps them back.
//
//   filled     [chunk 0] [chunk 1] ... [chunk n-1] [free]      [free]
//   exchanged  [free]    [free]    [chunk 0] ...               [chunk n-1]
//
// A downloaded chunk is stored in the slot of the chunk that was uploaded two chunks before. So
// each exchange moves the version by two slots, in alternating directions.
//
// Owns:    the memory, a stream for each direction.
// Thread:  one at a time.
// Bounded: kChunkBytesMax * 2 more than the version.
#pragma once

#include "base/result.h"
#include "kernels/runtime/device_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace pitstop::tp_worker {

class HostCopy {
  public:
    // Takes 1.2 ms at 55 GB/s, a PCIe 5 link's rate: long compared to the start of a copy.
    static constexpr std::int64_t kChunkBytesMax = std::int64_t{64} << 20;

    // Makes the object for a version of this many bytes. Allocates no memory yet.
    static Result<HostCopy> make(std::int64_t bytes);
    // Returns the page-locked memory that a version of `bytes` needs.
    [[nodiscard]] static std::int64_t host_bytes_of(std::int64_t bytes);

    // Allocates memory, all zeros, unless it has some.
    // Errors: kResourceExhausted, with the bytes.
    Result<> commit();
    // Frees the memory and its contents.
    void release() { memory_ = {}; }
    [[nodiscard]] std::int64_t host_bytes() const { return memory_.bytes(); }

    // Returns the version's address, which changes with each exchange(). REQUIRES: memory is
    // allocated.
    [[nodiscard]] std::byte* data() const { return memory_.data() + first_slot_ * chunk_bytes_; }

    // Swaps this version with the one at `gpu`, after all work enqueued on `steps`, and returns
    // when the swap is done. REQUIRES: there is memory.
    void exchange(std::byte* gpu, kernels::Stream steps);

  private:
    static constexpr std::int64_t kFreeSlots = 2;
    static constexpr std::size_t kEvents = 4;  // more than the events still waited for
    HostCopy() = default;

    std::int64_t bytes_ = 0;
    std::int64_t chunk_bytes_ = 0;
    std::int64_t num_chunks_ = 0;
    std::int64_t first_slot_ = 0;  // slot of the version's first chunk: 0 or kFreeSlots
    kernels::PinnedPages memory_{};
    kernels::DeviceStream up_{};
    kernels::DeviceStream down_{};
    kernels::DeviceEvent is_before_{};
    std::array<kernels::DeviceEvent, kEvents> is_up_{};    // by chunk, used in turn
    std::array<kernels::DeviceEvent, kEvents> is_down_{};  // by chunk, used in turn
};

}  // namespace pitstop::tp_worker
