#include "checkpoint/seen_files.h"

namespace pitstop::checkpoint {
namespace {

std::optional<FileIdentity> identity_of(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return std::nullopt;
    return FileIdentity::of(info);
}

}  // namespace

FileIdentity FileIdentity::of(const struct stat& info) {
    return {
        .device = info.st_dev,
        .inode = info.st_ino,
        .bytes = info.st_size,
        .written = info.st_mtim,
    };
}

std::optional<std::string> FileIdentity::difference(const FileIdentity& now) const {
    if (device != now.device || inode != now.inode) return "another file took its place";
    if (bytes != now.bytes) return fmt::format("it had {} bytes and now has {}", bytes, now.bytes);
    if (written.tv_sec != now.written.tv_sec || written.tv_nsec != now.written.tv_nsec)
        return "it was written to";
    return std::nullopt;
}

Error file_changed(const std::string& path, std::string_view how) {
    return make_error(
        ErrorCode::kDataLoss,
        "'{}' changed while the checkpoint was read ({}): finish writing a checkpoint before you "
        "name it, and leave it unchanged until the answer",
        path,
        how
    );
}

std::optional<FileIdentity> SeenFiles::look(const std::string& path) {
    files_.push_back({.path = path, .identity = identity_of(path)});
    return files_.back().identity;
}

Result<> SeenFiles::are_unchanged() const {
    for (const Seen& seen : files_) {
        const std::optional<FileIdentity> now = identity_of(seen.path);
        if (!seen.identity && !now) continue;
        if (!seen.identity) return file_changed(seen.path, "it did not exist before");
        if (!now) return file_changed(seen.path, "it was removed");
        if (const auto how = seen.identity->difference(*now)) return file_changed(seen.path, *how);
    }
    return Ok{};
}

}  // namespace pitstop::checkpoint
