#include "tp_worker/shared_memory.h"

#include "base/check.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

constexpr std::int64_t kTorchHeaderBytes = 64;

// "/torch_<digits>_<digits>_<digits>": no other slash, so no path but one in /dev/shm.
bool is_torch_name(std::string_view name) {
    constexpr std::string_view kPrefix = "/torch_";
    constexpr std::size_t kNameMax = 128;
    if (!name.starts_with(kPrefix) || name.size() > kNameMax) return false;
    name.remove_prefix(kPrefix.size());
    int num_numbers = 0;
    bool was_digit = false;
    for (const char c : name) {
        if (c >= '0' && c <= '9') {
            num_numbers += was_digit ? 0 : 1;
            was_digit = true;
        } else if (c == '_' && was_digit) {
            was_digit = false;
        } else {
            return false;
        }
    }
    return was_digit && num_numbers == 3;
}

}  // namespace

Result<std::shared_ptr<const TorchStorage>> TorchStorage::open(
    const std::string& name, std::int64_t bytes
) {
    if (!is_torch_name(name)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' is no name of a shared storage of torch (/torch_<pid>_<random>_<n>)",
            name.substr(0, 128)
        );
    }
    const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return make_error(
            errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermissionDenied,
            "the sender's shared memory {} cannot be opened: {}",
            name,
            std::strerror(errno)
        );
    }
    // From here on the destructor gives the reference back.
    std::shared_ptr<const TorchStorage> storage(new TorchStorage(name, fd, bytes));
    struct stat info {};
    if (::fstat(fd, &info) != 0 || bytes < 0 || info.st_size - kTorchHeaderBytes < bytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "shared memory {} has {} bytes after its header; {} were promised",
            name,
            info.st_size - kTorchHeaderBytes,
            bytes
        );
    }
    return storage;
}

TorchStorage::~TorchStorage() {
    struct stat info {};
    if (::fstat(fd_, &info) == 0 && info.st_size >= kTorchHeaderBytes) {
        void* header =
            ::mmap(nullptr, kTorchHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (header != MAP_FAILED) {
            const std::atomic_ref<std::int32_t> count(*static_cast<std::int32_t*>(header));
            if (count.fetch_sub(1) == 1) ::shm_unlink(name_.c_str());
            ::munmap(header, kTorchHeaderBytes);
        }
    }
    ::close(fd_);
}

Result<> TorchStorage::read(std::int64_t begin, std::span<std::byte> out) const {
    CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= bytes_);
    std::size_t done = 0;
    while (done < out.size()) {
        const ssize_t num = ::pread(
            fd_,
            out.data() + done,
            out.size() - done,
            kTorchHeaderBytes + begin + static_cast<off_t>(done)
        );
        if (num < 0 && errno == EINTR) continue;
        if (num <= 0) {
            return make_error(ErrorCode::kDataLoss, "shared memory {} has become shorter", name_);
        }
        done += static_cast<std::size_t>(num);
    }
    return Ok{};
}

Result<SharedFd> SharedFd::open(const SharedMemory& memory, Seal seal) {
    if (memory.pid < 1 || memory.fd < 0 || memory.bytes < 1) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "memory of {} bytes, descriptor {} of process {}",
            memory.bytes,
            memory.fd,
            memory.pid
        );
    }
    const std::string path = fmt::format("/proc/{}/fd/{}", memory.pid, memory.fd);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return make_error(
            errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermissionDenied,
            "the pusher's memory {} cannot be opened: {}",
            path,
            std::strerror(errno)
        );
    }
    SharedFd shared(fd, memory.bytes);
    struct stat info {};
    const int seals = ::fcntl(fd, F_GET_SEALS);
    const int wanted = F_SEAL_SHRINK | (seal == Seal::kFinal ? F_SEAL_WRITE | F_SEAL_GROW : 0);
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || seals < 0 ||
        (seals & wanted) != wanted) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} is no memfd sealed against shrinking{}",
            path,
            seal == Seal::kFinal ? ", growing and writing" : ""
        );
    }
    if (info.st_size != memory.bytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} has {} bytes; {} were promised",
            path,
            info.st_size,
            memory.bytes
        );
    }
    return shared;
}

SharedFd::SharedFd(SharedFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(std::exchange(other.bytes_, 0)) {}
SharedFd& SharedFd::operator=(SharedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
}
SharedFd::~SharedFd() {
    if (fd_ >= 0) ::close(fd_);
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

}  // namespace pitstop
