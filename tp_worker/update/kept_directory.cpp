#include "tp_worker/update/kept_directory.h"

#include "base/digest.h"
#include "base/mapped_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "committed-";
constexpr std::size_t kNumberLen = 8;
constexpr std::size_t kDigestLen = 32;

// Returns false for the weights and for the list of their files.
bool is_small_file(const fs::path& path) {
    static constexpr std::array<std::string_view, 4> kEndings{".json", ".txt", ".model", ".jinja"};
    const std::string name = path.filename().string();
    return !name.ends_with(".index.json") && !name.starts_with(".") &&
           std::ranges::find(kEndings, path.extension().string()) != kEndings.end();
}

Result<> remove_all(const std::string& path) {
    std::error_code failed;
    fs::remove_all(path, failed);
    if (failed) return io_error("cannot remove", path, failed.value());
    return Ok{};
}

}  // namespace

Error io_error(std::string_view what, const std::string& path, int number) {
    const bool is_full = number == ENOSPC || number == EDQUOT || number == EFBIG;
    return make_error(
        is_full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
        "{} '{}': {}",
        what,
        path,
        std::strerror(number)
    );
}

Result<> write_file(const std::string& path, std::string_view bytes) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return io_error("cannot make", path, errno);
    int failed = 0;
    while (!bytes.empty() && failed == 0) {
        const ssize_t num = ::write(fd, bytes.data(), bytes.size());
        if (num < 0) {
            failed = errno == EINTR ? 0 : errno;
        } else {
            bytes.remove_prefix(static_cast<std::size_t>(num));
        }
    }
    if (failed == 0 && ::fsync(fd) != 0) failed = errno;
    ::close(fd);
    if (failed != 0) return io_error("cannot write", path, failed);
    return Ok{};
}

Result<> sync_path(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return io_error("cannot open", path, errno);
    const int failed = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    // Some file systems cannot sync directories.
    if (failed != 0 && failed != EINVAL) return io_error("cannot sync", path, failed);
    return Ok{};
}

Result<std::vector<SmallFile>> read_small_files(const std::string& model_dir) {
    std::error_code failed;
    std::vector<SmallFile> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(model_dir, failed)) {
        std::error_code unseen;
        if (!entry.is_regular_file(unseen) || !is_small_file(entry.path())) continue;
        if (files.size() == kSmallFilesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "'{}' has more than {} files beside the weights",
                model_dir,
                kSmallFilesMax
            );
        }
        ASSIGN_OR_RETURN(
            std::string bytes, MappedFile::read(entry.path().string(), kSmallFileBytesMax)
        );
        files.push_back({entry.path().filename().string(), std::move(bytes)});
    }
    if (failed) return io_error("cannot list", model_dir, failed.value());
    return files;
}

Result<std::vector<KeptDirectory::Entry>> KeptDirectory::entries() const {
    std::error_code failed;
    std::vector<Entry> entries;
    for (const fs::directory_entry& found : fs::directory_iterator(path_, failed)) {
        const std::string name = found.path().filename().string();
        if (name.size() != kPrefix.size() + kNumberLen + 1 + kDigestLen ||
            !name.starts_with(kPrefix) || name[kPrefix.size() + kNumberLen] != '-')
            continue;
        Entry entry{.name = name, .digest = name.substr(name.size() - kDigestLen)};
        const char* const begin = name.data() + kPrefix.size();
        const auto [end, problem] = std::from_chars(begin, begin + kNumberLen, entry.number);
        if (problem != std::errc{} || end != begin + kNumberLen || entry.number < 0 ||
            !digest_from_hex(entry.digest))
            continue;
        entries.push_back(std::move(entry));
    }
    if (failed) return io_error("cannot list", path_, failed.value());
    std::ranges::sort(entries, {}, [](const Entry& entry) { return entry.number; });
    return entries;
}

bool KeptDirectory::is_model(const std::string& path) const {
    std::error_code failed;
    return fs::equivalent(path, model_dir_, failed);
}

Result<std::string> KeptDirectory::rename_to_newest(
    const std::string& from, std::string_view digest
) {
    ASSIGN_OR_RETURN(const std::vector<Entry> all, entries());
    const int number = all.empty() ? 1 : all.back().number + 1;
    const std::string name =
        fmt::format("{}/{}{:0{}}-{}", path_, kPrefix, number, kNumberLen, digest);
    if (::rename(from.c_str(), name.c_str()) != 0) return io_error("cannot rename to", name, errno);
    RETURN_IF_ERROR(sync_path(path_));
    return name;
}

Result<std::optional<std::string>> KeptDirectory::find(std::string_view digest) {
    ASSIGN_OR_RETURN(const std::vector<Entry> all, entries());
    for (const Entry& entry : all) {
        if (entry.digest != digest) continue;
        const std::string path = fmt::format("{}/{}", path_, entry.name);
        if (entry.name == all.back().name || is_model(path)) return std::optional(path);
        ASSIGN_OR_RETURN(std::string newest, rename_to_newest(path, digest));
        return std::optional(std::move(newest));
    }
    return std::optional<std::string>();
}

Result<> KeptDirectory::begin() {
    RETURN_IF_ERROR(drop());
    ASSIGN_OR_RETURN(const std::vector<Entry> all, entries());
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
        const std::string path = fmt::format("{}/{}", path_, all[i].name);
        if (!is_model(path)) RETURN_IF_ERROR(remove_all(path));
    }
    if (::mkdir(writing().c_str(), 0700) != 0) return io_error("cannot make", writing(), errno);
    return Ok{};
}

Result<> KeptDirectory::write(const SmallFile& file) {
    return write_file(fmt::format("{}/{}", writing(), file.name), file.bytes);
}

Result<std::string> KeptDirectory::seal(std::string_view digest) {
    RETURN_IF_ERROR(sync_path(writing()));
    return rename_to_newest(writing(), digest);
}

Result<> KeptDirectory::remove(const std::string& version) { return remove_all(version); }

Result<> KeptDirectory::drop() { return remove_all(writing()); }

}  // namespace pitstop::tp_worker
