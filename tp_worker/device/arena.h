// Holds memory at an address that stays: it is reserved once, given to the operating system and
// taken back while pointers into it stay valid. Weights and KV live in arenas (design section 6).
//
// Owns:   the address range, and its physical pages while committed.
// Thread: one at a time changes its state; nobody else may touch what is being released.
#pragma once

#include "base/result.h"
#include "kernels/device_range.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pitstop::tp_worker {

class Arena {
  public:
    // Reserves addresses for `bytes`, rounded up to whole pages; takes no memory yet. `tag` names
    // it in errors: "weights", "kv_cache".
    static Result<Arena> reserve(std::string tag, std::int64_t bytes);
    // Does the same in the opened GPU's memory, which the host cannot touch (device.h).
    static Result<Arena> reserve_on_gpu(std::string tag, std::int64_t bytes);

    Arena(Arena&& other) noexcept;
    Arena& operator=(Arena&& other) noexcept;
    ~Arena();

    // Makes the range readable and writable; reads as zeros. Physical memory comes when it is first
    // touched, on a GPU at once. kFailedPrecondition if it is committed, kResourceExhausted if
    // there is no room.
    Result<> commit();

    // Gives the physical memory back; returns the bytes that were resident and no longer are, as
    // the kernel counts them. Until the next commit() an access faults. kFailedPrecondition if it
    // is not committed.
    Result<std::int64_t> release();

    // Copies everything to the start of `to`, piece by piece, and gives each piece's physical
    // memory back when it is copied: both together never take much more than one of them. REQUIRES:
    // both are the host's and committed; `to` was reserved for as many bytes.
    void move_to(Arena& to);

    // Has the range's memory be this memfd's from now on: read-only, sealed, as large as the range.
    // What was there is given back. REQUIRES: is_committed().
    Result<> adopt(int fd);
    // Replaces adopted memory by memory of our own with the same bytes, which may be written.
    Result<> disown();
    // Leaves memory of our own, which may be written, whatever was there: other bytes, adopted
    // ones, none. Errors: commit()'s.
    Result<> renew();

    // Copies bytes from `begin` on to the host, wherever they are, and waits for it. REQUIRES:
    // is_committed(); nothing writes to them. Thread: any.
    void fetch(std::int64_t begin, std::span<std::byte> out) const;

    [[nodiscard]] bool is_committed() const { return is_committed_; }
    // Counts what makes its bytes others without a write to data(): commit(), release(), adopt().
    [[nodiscard]] std::uint64_t mapping() const { return mapping_; }
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    // Returns the physical memory in it now, in bytes.
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
    kernels::DeviceRange gpu_{};  // empty: the range is the host's
    bool is_adopted_ = false;
    std::uint64_t mapping_ = 0;
};

}  // namespace pitstop::tp_worker
