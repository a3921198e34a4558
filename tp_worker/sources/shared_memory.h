// Memory of another process: sealed memfds.
#pragma once

#include "base/result.h"
#include "messages/push.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop::tp_worker {

// Says what a sender may still do to its memfd.
enum class Seal {
    kMayWrite,  // write, but not make it smaller: reading never faults
    kFinal,     // nothing
};

// A memfd of another process (messages/push.h), opened and checked, not mapped.
class SharedFd {
  public:
    // Errors: kNotFound (no such process or descriptor), kPermissionDenied, kInvalidArgument (not a
    // memfd, another size, not sealed).
    static Result<SharedFd> open(const messages::SharedMemory& memory, Seal seal);
    SharedFd(SharedFd&& other) noexcept;
    SharedFd& operator=(SharedFd&& other) noexcept;
    ~SharedFd();

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    SharedFd(int fd, std::int64_t bytes) : fd_(fd), bytes_(bytes) {}
    int fd_ = -1;
    std::int64_t bytes_ = 0;
};

// It, mapped for reading.
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
