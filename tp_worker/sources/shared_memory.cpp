#include "tp_worker/sources/shared_memory.h"

#include "base/system_error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {

Result<SharedFd> SharedFd::open(const messages::SharedMemory& memory, Seal seal) {
    if (memory.pid < 1 || memory.fd < 0 || memory.bytes < 1) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "shared memory of {} bytes, descriptor {}, process {}: bytes and process must be 1 or "
            "more, the descriptor 0 or more",
            memory.bytes,
            memory.fd,
            memory.pid
        );
    }
    const std::string path = fmt::format("/proc/{}/fd/{}", memory.pid, memory.fd);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return make_error(
            code_of_errno(errno, ErrorCode::kPermissionDenied),
            "the pusher's memory {} cannot be opened: {}",
            path,
            std::strerror(errno)
        );
    }
    SharedFd shared(fd, memory.bytes);
    struct stat info {};
    const int seals = ::fcntl(fd, F_GET_SEALS);  // an error for a file that is not shared memory
    const int wanted = seal == Seal::kFinal ? F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_GROW : 0;
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || seals < 0 ||
        (seals & wanted) != wanted) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} is not {}",
            path,
            seal == Seal::kFinal ? "a memfd sealed against shrinking, growing and writing"
                                 : "shared memory"
        );
    }
    shared.may_shrink_ = (seals & F_SEAL_SHRINK) == 0;
    if (info.st_size != memory.bytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} has {} bytes; the sender declared {}",
            path,
            info.st_size,
            memory.bytes
        );
    }
    return shared;
}

SharedFd::SharedFd(SharedFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, 0)),
      may_shrink_(other.may_shrink_) {}
SharedFd& SharedFd::operator=(SharedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    std::swap(may_shrink_, other.may_shrink_);
    return *this;
}
SharedFd::~SharedFd() {
    if (fd_ >= 0) ::close(fd_);
}

Result<> SharedFd::is_whole() const {
    struct stat info {};
    if (::fstat(fd_, &info) == 0 && info.st_size >= bytes_) return Ok{};
    return make_error(ErrorCode::kDataLoss, "the pusher's memory became shorter");
}

Result<SharedMapping> SharedMapping::map(const SharedFd& fd) {
    const auto size = static_cast<std::size_t>(fd.bytes());
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.fd(), 0);
    if (data == MAP_FAILED) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot map {} bytes of the pusher's memory: {}",
            size,
            std::strerror(errno)
        );
    }
    return SharedMapping(static_cast<const std::byte*>(data), size);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}
SharedMapping::~SharedMapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace pitstop::tp_worker
