// Opens a storage in POSIX shared memory, as torch's file_system strategy passes it: 64 bytes of
// header, whose first int32 counts the references, then the payload.
//
// Every owner of one of torch's storages has a reference and a mapping, and drops both together;
// pickling adds a reference for the receiver. Dropping the last reference removes the object. A
// sender may send the same pickle several times: then no reference was lent, and the last one is
// the sender's own.
//
// Read through a mapping, in a CutGuard: a sender may truncate the object.
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

// Returns the owner of one of torch's objects in shared memory: "/torch_<pid>_<random>_<n>";
// nothing for any other name.
[[nodiscard]] std::optional<pid_t> torch_sender_of(std::string_view name);

class TorchStorage {
  public:
    // `name` is as in the handle: "/torch_<pid>_<random>_<n>".
    // Errors: kInvalidArgument (another form of name), kNotFound (the sender has removed
    // it), kPermissionDenied.
    static Result<std::unique_ptr<TorchStorage>> open(const std::string& name);
    ~TorchStorage();
    TorchStorage(const TorchStorage&) = delete;
    TorchStorage& operator=(const TorchStorage&) = delete;

    // `bytes`: the declared payload. Errors: kInvalidArgument (there are fewer),
    // kResourceExhausted.
    Result<> map(std::int64_t bytes);
    // Returns the declared payload. REQUIRES: it was mapped.
    [[nodiscard]] std::span<const std::byte> bytes() const;
    // Errors: kDataLoss if the sender has truncated it.
    Result<> is_whole() const;

    // The outcome of giving a reference back. REQUIRES: no later call on the storage, except
    // remove() after kLast.
    enum class Returned {
        kDone,
        // the only reference, so it was kept: the sender's own, or one that was lent while the
        // sender dropped its own; call remove() in the second case
        kLast,
    };
    [[nodiscard]] Returned give_back();
    void remove();

    [[nodiscard]] pid_t sender() const { return sender_; }
    // Identifies the file by device and inode.
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
    const std::byte* data_ = nullptr;  // of the header
    std::int64_t bytes_ = 0;           // of the declared payload
};

// Gives back the references of all `storages`. A last reference is the sender's own as long as the
// sender has the storage mapped. If /proc does not show that (another namespace, another user), the
// reference counts as lent, as torch itself assumes.
void give_back(std::span<const std::unique_ptr<TorchStorage>> storages);

}  // namespace pitstop::tp_worker
