// Opens memory of another process: its memfds, and other files of shared memory that it has open.
#pragma once

#include "base/result.h"
#include "messages/push.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop::tp_worker {

// The sender's remaining rights to change the memory.
enum class Seal {
    kNone,   // the sender may write; it may also truncate, unless truncation is sealed
    kFinal,  // nothing
};

// A file of shared memory (messages/push.h), opened and checked, not mapped.
class SharedFd {
  public:
    // Errors: kNotFound (no such process or descriptor), kPermissionDenied, kInvalidArgument (not
    // shared memory, another size, not sealed).
    static Result<SharedFd> open(const messages::SharedMemory& memory, Seal seal);
    SharedFd(SharedFd&& other) noexcept;
    SharedFd& operator=(SharedFd&& other) noexcept;
    ~SharedFd();

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    // Returns whether another process may truncate it: a mapping must then be read in a CutGuard
    // (base/cut_guard.h), and is_whole() called afterwards.
    [[nodiscard]] bool may_shrink() const { return may_shrink_; }
    // Errors: kDataLoss if the file has become shorter.
    [[nodiscard]] Result<> is_whole() const;

  private:
    SharedFd(int fd, std::int64_t bytes) : fd_(fd), bytes_(bytes) {}
    int fd_ = -1;
    std::int64_t bytes_ = 0;
    bool may_shrink_ = false;
};

// A file of shared memory, mapped for reading.
class SharedMapping {
  public:
    static Result<SharedMapping> map(const SharedFd& fd);
    SharedMapping(SharedMapping&& other) noexcept;
    SharedMapping& operator=(SharedMapping&& other) noexcept;
    ~SharedMapping();

    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    SharedMapping(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace pitstop::tp_worker
