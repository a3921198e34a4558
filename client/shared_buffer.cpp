#include "client/shared_buffer.h"

#include "base/check.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace pitstop {

Result<SharedBuffer> SharedBuffer::make(std::int64_t bytes, Access access) {
    const int fd = ::memfd_create("pitstop_push", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return make_error(
            ErrorCode::kResourceExhausted, "cannot make shared memory: {}", std::strerror(errno)
        );
    }
    const auto size = static_cast<std::size_t>(bytes);
    SharedBuffer buffer(fd, nullptr, size);
    bool is_made =
        ::ftruncate(fd, bytes) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
    if (is_made && access == Access::kMapped) {
        void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        is_made = data != MAP_FAILED;
        if (is_made) buffer.data_ = static_cast<std::byte*>(data);
    }
    if (is_made) return buffer;
    return make_error(
        ErrorCode::kResourceExhausted,
        "cannot get {} bytes of shared memory: {}",
        bytes,
        std::strerror(errno)
    );
}

SharedBuffer::SharedBuffer(SharedBuffer&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}
SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}
SharedBuffer::~SharedBuffer() {
    if (data_ != nullptr) ::munmap(data_, size_);
    if (fd_ >= 0) ::close(fd_);
}

Result<> SharedBuffer::write(std::int64_t at, std::span<const std::byte> from) const {
    CHECK(at >= 0 && at + std::ssize(from) <= static_cast<std::int64_t>(size_));
    while (!from.empty()) {
        const ssize_t num = ::pwrite(fd_, from.data(), from.size(), at);
        if (num < 0 && errno == EINTR) continue;
        if (num <= 0) {
            return make_error(
                errno == EFAULT ? ErrorCode::kDataLoss : ErrorCode::kResourceExhausted,
                "cannot write {} bytes of shared memory: {}",
                from.size(),
                std::strerror(errno)
            );
        }
        at += num;
        from = from.subspan(static_cast<std::size_t>(num));
    }
    return Ok{};
}

messages::SharedMemory SharedBuffer::describe() const {
    return {
        .pid = ::getpid(),
        .fd = fd_,
        .bytes = static_cast<std::int64_t>(size_),
    };
}

Result<> SharedBuffer::seal() {
    if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), size_);
    if (::fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE) == 0) return Ok{};
    return make_error(ErrorCode::kInternal, "cannot seal shared memory: {}", std::strerror(errno));
}

}  // namespace pitstop
