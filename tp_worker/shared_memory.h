// Memory of another process: PyTorch's shared storages, and sealed memfds.
#pragma once

#include "base/result.h"
#include "messages/push.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace pitstop {

// A storage in POSIX shared memory, as torch's file_system strategy hands it over: 64 bytes of
// header, whose first int32 counts the references, then the payload. Sending a storage adds a
// reference for the receiver, which this gives back when it ends; the last one removes the object.
//
// It is read by pread, not through a mapping: a sender that cuts the object short is an error here
// and would be a SIGBUS there.
// Source: torch/lib/libshm; ATen/MapAllocator.cpp (RefcountedMapAllocator).
class TorchStorage {
  public:
    // `name` as in the handle: "/torch_<pid>_<random>_<n>". `bytes` of payload are promised.
    // Errors: kInvalidArgument (no such form of name; smaller than promised), kNotFound (the sender
    // has removed it).
    static Result<std::shared_ptr<const TorchStorage>> open(
        const std::string& name, std::int64_t bytes
    );
    ~TorchStorage();
    TorchStorage(const TorchStorage&) = delete;
    TorchStorage& operator=(const TorchStorage&) = delete;

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    // REQUIRES: 0 <= begin, begin + out.size() <= bytes(). kDataLoss: the sender has cut it short.
    Result<> read(std::int64_t begin, std::span<std::byte> out) const;

  private:
    TorchStorage(std::string name, int fd, std::int64_t bytes)
        : name_(std::move(name)), fd_(fd), bytes_(bytes) {}

    std::string name_;
    int fd_ = -1;
    std::int64_t bytes_ = 0;
};

// What a sender may still do to its memfd.
enum class Seal {
    kMayWrite,  // write, but not make it smaller: reading never faults
    kFinal,     // nothing
};

// A memfd of another process (messages/push.h), opened and checked, not mapped.
class SharedFd {
  public:
    // Errors: kNotFound (no such process or descriptor), kPermissionDenied, kInvalidArgument (not a
    // memfd, another size, not sealed).
    static Result<SharedFd> open(const SharedMemory& memory, Seal seal);
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

}  // namespace pitstop
