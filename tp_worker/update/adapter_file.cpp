#include "tp_worker/update/adapter_file.h"

#include "base/check.h"
#include "tp_worker/update/kept_directory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

// Returns a file without a name; -1: errno says why not. Some file systems have no O_TMPFILE.
int make_file(const std::string& directory) {
    int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    std::string path = directory + "/.adapter-XXXXXX";
    fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(path.c_str());
    return fd;
}

Digest digest_of_bytes(std::span<const std::byte> bytes) {
    return digest_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

AdapterFile::~AdapterFile() {
    if (fd_ >= 0) ::close(fd_);
}

Result<> AdapterFile::write(const std::string& directory, std::span<const std::byte> bytes) {
    CHECK(!is_written());
    const int fd = make_file(directory);
    if (fd < 0) return io_error("cannot make the file of an evicted adapter in", directory, errno);
    for (std::size_t at = 0; at < bytes.size();) {
        const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
        const ssize_t num = ::pwrite(fd, piece.data(), piece.size(), static_cast<off_t>(at));
        if (num < 0 && errno == EINTR) continue;
        if (num <= 0) {
            const int number = num < 0 ? errno : ENOSPC;
            ::close(fd);
            return io_error("cannot write the file of an evicted adapter in", directory, number);
        }
        at += static_cast<std::size_t>(num);
    }
    fd_ = fd;
    digest_ = digest_of_bytes(bytes);
    return Ok{};
}

Result<> AdapterFile::read(std::span<std::byte> bytes) const {
    CHECK(is_written());
    for (std::size_t at = 0; at < bytes.size();) {
        const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
        const ssize_t num = ::pread(fd_, piece.data(), piece.size(), static_cast<off_t>(at));
        if (num < 0 && errno == EINTR) continue;
        if (num < 0) {
            return make_error(
                ErrorCode::kUnavailable,
                "cannot read the file of an evicted adapter: {}",
                std::strerror(errno)
            );
        }
        if (num == 0)
            return Error{ErrorCode::kDataLoss, "the file of an evicted adapter is truncated"};
        at += static_cast<std::size_t>(num);
    }
    if (digest_of_bytes(bytes) == digest_) return Ok{};
    return Error{
        ErrorCode::kDataLoss, "the file of an evicted adapter has changed since it was written"};
}

}  // namespace pitstop::tp_worker
