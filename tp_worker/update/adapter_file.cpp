#include "tp_worker/update/adapter_file.h"

#include "base/check.h"
#include "base/isa.h"
#include "digest/digest_run.h"
#include "tp_worker/update/kept_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

// Returns a file without a name; -1: errno says why not. Some file systems have no O_TMPFILE.
int make_file(const std::string& directory) {
    int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    std::string path = directory + "/.adapter-XXXXXX";
    fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(path.c_str());
    return fd;
}

// Adds a piece of the bytes, which begins at a word of the digest.
void add_piece(std::int64_t begin, std::span<const std::byte> piece, digest::DigestSum* sum) {
    static const digest::AddRun add_run = digest::add_run_on(best_isa());
    add_run(
        {.data = piece.data(),
         .num_bytes = std::ssize(piece),
         .first_word = static_cast<std::uint64_t>(begin / kDigestWordBytes)},
        *sum
    );
}

Result<> write_piece(int fd, std::int64_t at, std::span<const std::byte> piece) {
    while (!piece.empty()) {
        const ssize_t num = ::pwrite(fd, piece.data(), piece.size(), at);
        if (num < 0 && errno == EINTR) continue;
        if (num <= 0) {
            return make_error(
                ErrorCode::kUnavailable,
                "cannot write the file of an evicted adapter: {}",
                std::strerror(num < 0 ? errno : ENOSPC)
            );
        }
        at += num;
        piece = piece.subspan(static_cast<std::size_t>(num));
    }
    return Ok{};
}

}  // namespace

AdapterFile::~AdapterFile() {
    if (fd_ >= 0) ::close(fd_);
}

Result<> AdapterFile::write(
    const std::string& directory, std::int64_t num_bytes, const Fetch& fetch
) {
    CHECK(!is_written());
    const int fd = make_file(directory);
    if (fd < 0) return io_error("cannot make the file of an evicted adapter in", directory, errno);
    std::vector<std::byte> piece;
    digest::DigestSum sum;
    for (std::int64_t at = 0; at < num_bytes; at += std::ssize(piece)) {
        piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, num_bytes - at)));
        fetch(at, piece);
        add_piece(at, piece, &sum);
        if (Result<> written = write_piece(fd, at, piece); !written) {
            ::close(fd);
            Error error = std::move(written).error();
            error.message += fmt::format(" (in '{}')", directory);
            return error;
        }
    }
    fd_ = fd;
    digest_ = sum.digest;
    return Ok{};
}

Result<> AdapterFile::read(std::span<std::byte> bytes) const {
    digest::DigestSum sum;
    for (std::int64_t at = 0; at < std::ssize(bytes);) {
        const std::int64_t num = std::min(kPieceBytes, std::ssize(bytes) - at);
        const auto piece =
            bytes.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(num));
        RETURN_IF_ERROR(read_at(at, piece));
        add_piece(at, piece, &sum);
        at += num;
    }
    if (sum.digest == digest_) return Ok{};
    return Error{
        ErrorCode::kDataLoss, "the file of an evicted adapter has changed since it was written"};
}

Result<> AdapterFile::read_at(std::int64_t begin, std::span<std::byte> bytes) const {
    CHECK(is_written());
    while (!bytes.empty()) {
        const ssize_t num = ::pread(fd_, bytes.data(), bytes.size(), begin);
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
        begin += num;
        bytes = bytes.subspan(static_cast<std::size_t>(num));
    }
    return Ok{};
}

}  // namespace pitstop::tp_worker
