// Takes file descriptors out of another process of this machine, by their numbers there.
//
// The kernel lets whoever may attach a debugger to that process do so: a process of the same user,
// where the security module Yama does not forbid it, or one with CAP_SYS_PTRACE.
//
// Owns:   a descriptor of the process, so that its number is nobody else's meanwhile.
// Source: pidfd_open(2), pidfd_getfd(2), ptrace(2) ("PTRACE_MODE_ATTACH_REALCREDS").
#pragma once

#include "base/result.h"

#include <sys/types.h>
#include <utility>

namespace pitstop::tp_worker {

class PeerDescriptors {
  public:
    // Errors: kUnavailable, no such process; kUnsupported, the kernel does not know the call or a
    // container's filter forbids it; kResourceExhausted.
    static Result<PeerDescriptors> open(pid_t pid);
    ~PeerDescriptors();
    PeerDescriptors(PeerDescriptors&& other) noexcept
        : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)) {}
    PeerDescriptors& operator=(PeerDescriptors&&) = delete;

    [[nodiscard]] bool has_ended() const;

    // Gives the caller one of its own, which it closes. Errors: as open(); kUnavailable, it has no
    // such descriptor; kPermissionDenied, which says what would permit it.
    [[nodiscard]] Result<int> duplicate(int fd) const;

  private:
    PeerDescriptors(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

    pid_t pid_ = 0;
    int fd_ = -1;
};

}  // namespace pitstop::tp_worker
