// Opens a storage in POSIX shared memory, as torch's file_system strategy hands it over: 64 bytes
// of header, whose first int32 counts the references, then the payload.
//
// Whoever has a storage of torch's holds a reference and a mapping, and drops the one with the
// other; pickling adds a reference for the receiver. The last reference removes the object. A
// sender may send what it pickled once many times: then no reference was lent, and the last one is
// the sender's own.
//
// It is read through a mapping, in a CutGuard: a sender may cut the object short.
//
// Owns: a descriptor, a mapping, and one reference until it is given back.
// Source: torch/lib/libshm; ATen/MapAllocator.cpp (RefcountedMapAllocator).
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace pitstop::tp_worker {

// Returns whose an object of torch's in shared memory is: "/torch_<pid>_<random>_<n>"; nothing if
// it is no such name.
[[nodiscard]] std::optional<pid_t> torch_sender_of(std::string_view name);

class TorchStorage {
  public:
    // `name` is as in the handle: "/torch_<pid>_<random>_<n>".
    // Errors: kInvalidArgument (no such form of name), kNotFound (the sender has removed it),
    // kPermissionDenied.
    static Result<std::unique_ptr<TorchStorage>> open(const std::string& name);
    ~TorchStorage();
    TorchStorage(const TorchStorage&) = delete;
    TorchStorage& operator=(const TorchStorage&) = delete;

    // `bytes` of payload were promised. Errors: kInvalidArgument (there are fewer),
    // kResourceExhausted.
    Result<> map(std::int64_t bytes);
    // Returns the payload that was promised. REQUIRES: it was mapped.
    [[nodiscard]] std::span<const std::byte> bytes() const;
    // Errors: kDataLoss, the sender has cut it short.
    Result<> is_whole() const;

    // Gives back what the reference was worth. REQUIRES: the last call on it, but for what kLast
    // asks for.
    enum class Returned {
        kDone,
        kLast,  // nobody holds another, so it was kept: the sender's own, or one that it lent and
                // has let go of beside. remove() it in the second case
    };
    [[nodiscard]] Returned give_back();
    void remove();

    [[nodiscard]] pid_t sender() const { return sender_; }
    // Says which file it is: that of this device and inode.
    struct File {
        dev_t device = 0;
        ino_t inode = 0;
    };
    [[nodiscard]] File file() const;

  private:
    TorchStorage(std::string name, pid_t sender, int fd)
        : name_(std::move(name)), sender_(sender), fd_(fd) {}

    std::string name_;
    pid_t sender_ = 0;
    int fd_ = -1;
    const std::byte* data_ = nullptr;  // the header's
    std::int64_t bytes_ = 0;           // those of the payload that was promised
};

// Gives the references of all of them back. One that is the last is the sender's as long as the
// sender has the storage mapped. Where /proc does not show that (another namespace, another user),
// it was lent, as torch itself assumes.
void give_back(std::span<const std::unique_ptr<TorchStorage>> storages);

}  // namespace pitstop::tp_worker
