#include "base/mapped_file.h"

#include "base/cut_guard.h"
#include "base/system_error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

Error cannot(const char* verb, const std::string& path) {
    ErrorCode code = code_of_errno(errno, ErrorCode::kInvalidArgument);
    if (errno == ENODEV) code = ErrorCode::kUnsupported;
    return make_error(code, "cannot {} '{}': {}", verb, path, std::strerror(errno));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
    const int fd =
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a FIFO must not block
    if (fd < 0) return cannot("open", path);
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd);
        return make_error(ErrorCode::kInvalidArgument, "'{}' is not a regular file", path);
    }
    const auto size = static_cast<std::size_t>(info.st_size);
    Result<MappedFile> file = of(fd, size, path);
    ::close(fd);
    return file;
}

Result<MappedFile> MappedFile::of(int fd, std::size_t size, const std::string& path) {
    if (size == 0) return MappedFile(nullptr, 0);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return cannot("map", path);
    return MappedFile(static_cast<const std::byte*>(data), size);
}

Result<std::string> MappedFile::read(const std::string& path, std::size_t size_max) {
    ASSIGN_OR_RETURN(const MappedFile file, open(path));
    if (file.size_ > size_max) {
        return make_error(
            ErrorCode::kTooLarge,
            "'{}' has {} bytes; at most {} are accepted",
            path,
            file.size_,
            size_max
        );
    }
    const CutGuard guard(file.bytes());
    std::string text(reinterpret_cast<const char*>(file.data_), file.size_);
    if (guard.is_cut())
        return make_error(ErrorCode::kDataLoss, "'{}' was truncated while it was read", path);
    return text;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace pitstop
