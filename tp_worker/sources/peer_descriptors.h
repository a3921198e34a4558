// Copies file descriptors from another process of this machine, by their numbers there.
//
// The kernel allows this to a process that may attach a debugger to the other process: of the same
// user, unless the security module Yama forbids it, or with CAP_SYS_PTRACE.
//
// Owns:   a descriptor of the process, so that its number cannot be reused meanwhile.
// Source: pidfd_open(2), pidfd_getfd(2), ptrace(2) ("PTRACE_MODE_ATTACH_REALCREDS").
#pragma once

#include "base/result.h"

#include <sys/types.h>
#include <utility>

namespace pitstop::tp_worker {

class PeerDescriptors {
  public:
    // Errors: kUnavailable if there is no such process; kUnsupported if the kernel lacks the call
    // or a container's filter forbids it; kResourceExhausted.
    static Result<PeerDescriptors> open(pid_t pid);
    ~PeerDescriptors();
    PeerDescriptors(PeerDescriptors&& other) noexcept
        : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)) {}
    PeerDescriptors& operator=(PeerDescriptors&&) = delete;

    [[nodiscard]] bool has_ended() const;

    // Returns a copy, which the caller must close. Errors: as open(); kUnavailable if there is no
    // such descriptor; kPermissionDenied, naming what would permit it.
    [[nodiscard]] Result<int> duplicate(int fd) const;

  private:
    PeerDescriptors(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

    pid_t pid_ = 0;
    int fd_ = -1;
};

}  // namespace pitstop::tp_worker
