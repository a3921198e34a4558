#include "tp_worker/sources/peer_descriptors.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

// Both system calls have the same numbers everywhere; headers before 2020 lack them.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

Error refusal(std::string_view call, pid_t pid, int error) {
    if (error == ESRCH) {
        return make_error(
            ErrorCode::kUnavailable,
            "the sender, process {}, has ended, or is in another PID namespace ({})",
            pid,
            call
        );
    }
    const bool is_full = error == EMFILE || error == ENFILE || error == ENOMEM;
    return make_error(
        is_full ? ErrorCode::kResourceExhausted : ErrorCode::kUnsupported,
        "{} on the sender, process {}, failed: {}",
        call,
        pid,
        std::strerror(error)
    );
}

}  // namespace

Result<PeerDescriptors> PeerDescriptors::open(pid_t pid) {
    if (pid <= 0) return make_error(ErrorCode::kInvalidArgument, "{} is not a process id", pid);
    const auto fd = static_cast<int>(::syscall(kPidfdOpen, pid, 0));
    if (fd < 0) return refusal("pidfd_open", pid, errno);
    return PeerDescriptors(pid, fd);
}

PeerDescriptors::~PeerDescriptors() {
    if (fd_ >= 0) ::close(fd_);
}

// A process's descriptor becomes readable when the process ends.
bool PeerDescriptors::has_ended() const {
    pollfd end{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) > 0;
}

Result<int> PeerDescriptors::duplicate(int fd) const {
    const auto taken = static_cast<int>(::syscall(kPidfdGetfd, fd_, fd, 0));
    if (taken >= 0) return taken;
    const int error = errno;
    if (error == EBADF) {
        return make_error(
            ErrorCode::kUnavailable,
            "the sender, process {}, has no descriptor {}: it freed the shared memory",
            pid_,
            fd
        );
    }
    if (error == EPERM) {
        return make_error(
            ErrorCode::kPermissionDenied,
            "the sender, process {}, does not let this process copy its descriptors (pidfd_getfd): "
            "both must run as one user, with kernel.yama.ptrace_scope=0, or this process needs "
            "CAP_SYS_PTRACE",
            pid_
        );
    }
    return refusal("pidfd_getfd", pid_, error);
}

}  // namespace pitstop::tp_worker
