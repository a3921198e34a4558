// Memory at a constant address: reserved once, released to the operating system and taken again
// while pointers into it stay valid. Weights and KV live in arenas (design section 6).
//
// Owns:   the address range, and its physical pages while committed.
// Thread: one at a time changes its state; no other thread may touch memory that is being released.
#pragma once

#include "base/result.h"
#include "kernels/runtime/device_range.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pitstop::tp_worker {

class Arena {
  public:
    // Reserves addresses for `bytes`, rounded up to whole pages, without memory. `tag` names the
    // arena in errors: "weights", "kv_cache".
    static Result<Arena> reserve(std::string tag, std::int64_t bytes);
    // Reserves addresses of the opened GPU's memory, which the host cannot touch (device.h).
    static Result<Arena> reserve_on_gpu(std::string tag, std::int64_t bytes);

    Arena(Arena&& other) noexcept;
    Arena& operator=(Arena&& other) noexcept;
    ~Arena();

    // Makes the range readable and writable; reads as zeros. Physical memory is allocated at the
    // first access, on a GPU at once. kFailedPrecondition if it is committed, kResourceExhausted if
    // there is no memory.
    Result<> commit();

    // Releases the physical memory; returns the bytes that were resident and no longer are, as the
    // kernel counts them. Until the next commit() an access faults. kFailedPrecondition if it is
    // not committed.
    Result<std::int64_t> release();

    // Copies everything to the start of `to`, piece by piece, and releases each piece's physical
    // memory after copying it. So both arenas together never use much more memory than one.
    // REQUIRES: both are in host memory and committed; `to` has the same size.
    void move_to(Arena& to);

    // Backs the range with this memfd from now on: read-only, sealed, as large as the range. The
    // earlier memory is released. REQUIRES: is_committed().
    Result<> adopt(int fd);
    // Replaces adopted memory by writable memory of our own with the same bytes.
    Result<> disown();
    // Ensures that the range has writable memory of our own, whether it had such memory, adopted
    // memory, or none. Errors: commit()'s.
    Result<> renew();

    // Copies the bytes from `begin` on into `out`, also from a GPU, and waits for the copy.
    // REQUIRES: is_committed(); nothing writes those bytes meanwhile. Thread: any.
    void fetch(std::int64_t begin, std::span<std::byte> out) const;

    [[nodiscard]] bool is_committed() const { return is_committed_; }
    // Counts changes of the bytes without a write to data(): commit(), release(), adopt().
    [[nodiscard]] std::uint64_t mapping() const { return mapping_; }
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    // Returns the physical memory of the range now, in bytes.
    [[nodiscard]] std::int64_t resident_bytes() const;

  private:
    Arena(std::string tag, std::byte* data, std::int64_t bytes)
        : tag_(std::move(tag)), data_(data), bytes_(bytes) {}
    Arena(std::string tag, kernels::DeviceRange gpu)
        : tag_(std::move(tag)), data_(gpu.data()), bytes_(gpu.bytes()), gpu_(std::move(gpu)) {}
    [[nodiscard]] bool is_on_gpu() const { return gpu_.data() != nullptr; }

    std::string tag_;
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
    bool is_committed_ = false;
    kernels::DeviceRange gpu_{};  // empty: a range of the host
    bool is_adopted_ = false;
    std::uint64_t mapping_ = 0;
};

}  // namespace pitstop::tp_worker
