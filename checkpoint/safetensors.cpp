#include "checkpoint/safetensors.h"

#include "base/mapped_file.h"
#include "base/system_error.h"
#include "checkpoint/open_file.h"
#include "checkpoint/other_formats.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/torch_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace pitstop::checkpoint {
namespace {

// The format is little-endian, and so is every machine that pitstop runs on.
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kAdapterFile = "adapter_model.safetensors";
constexpr std::string_view kTorchAdapterFile = "adapter_model.bin";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
// bytes per read; between reads, a dropped stage is noticed
constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::string_view kCutShort = "the file became shorter";

std::string path_in(std::string_view directory, std::string_view file) {
    return fmt::format("{}/{}", directory, file);
}

bool is_file(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// The limit on a header or an index shrinks with the number of tensors accepted.
std::size_t bytes_max(const ReadLimits& limits, std::size_t max) {
    if (limits.tensors_max >= max / kEntryBytesMax) return max;
    return std::min(max, kMetadataBytesMax + limits.tensors_max * kEntryBytesMax);
}

// Reads the JSON header of an open file of `file_bytes`.
Result<std::string> read_header(
    int fd, std::int64_t file_bytes, const std::string& path, const ReadLimits& limits
) {
    std::uint64_t length = 0;
    if (file_bytes < 8 || !read_exactly(fd, 0, std::as_writable_bytes(std::span(&length, 1)))) {
        return make_error(
            ErrorCode::kDataLoss, "'{}' has {} bytes: too short for a header", path, file_bytes
        );
    }
    if (is_lfs_pointer({reinterpret_cast<const char*>(&length), sizeof length})) {
        return make_error(
            ErrorCode::kDataLoss,
            "'{}' is a git-lfs pointer, not the file itself; run `git lfs pull` to fetch the file",
            path
        );
    }
    const std::size_t length_max = bytes_max(limits, kHeaderBytesMax);
    if (length > length_max) {
        return make_error(
            ErrorCode::kTooLarge,
            "'{}' declares a header of {} bytes; at most {} are accepted",
            path,
            length,
            length_max
        );
    }
    if (static_cast<std::int64_t>(length) > file_bytes - 8) {
        return make_error(
            ErrorCode::kDataLoss,
            "'{}' ends inside its header: it has {} bytes of {} (truncated?)",
            path,
            file_bytes - 8,
            length
        );
    }
    std::string header(length, '\0');
    const std::span bytes = std::as_writable_bytes(std::span(header));
    for (std::size_t done = 0; done < length; done += kReadBytes) {
        if (limits.is_over()) return reading_was_dropped(path);
        const auto piece = bytes.subspan(done, std::min(kReadBytes, length - done));
        if (!read_exactly(fd, 8 + static_cast<std::int64_t>(done), piece))
            return make_error(ErrorCode::kDataLoss, "cannot read the header of '{}'", path);
    }
    return header;
}

// Returns the tensors of a safetensors file.
Result<std::vector<StoredTensor>> read_safetensors(const OpenFile& args) {
    ASSIGN_OR_RETURN(
        const std::string header, read_header(args.fd, args.file_bytes, args.path, args.limits)
    );
    const std::int64_t data_begin = 8 + std::ssize(header);
    ASSIGN_OR_RETURN(
        std::vector<StoredTensor> tensors,
        parse_safetensors_header(
            {.json = header,
             .data_bytes = args.file_bytes - data_begin,
             .path = args.path,
             .limits = args.limits}
        )
    );
    for (StoredTensor& tensor : tensors) tensor.file_offset += data_begin;
    return tensors;
}

}  // namespace

Result<> Checkpoint::add_file(
    const std::string& path, const ReadLimits& limits, ReadTensors read_tensors
) {
    const std::optional<FileIdentity> seen = seen_.look(path);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const ErrorCode code = code_of_errno(errno, ErrorCode::kInvalidArgument);
        return make_error(code, "cannot open '{}': {}", path, std::strerror(errno));
    }
    const std::size_t file = files_.size();
    files_.push_back({.path = path, .fd = fd});  // from here on the destructor closes it

    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return make_error(ErrorCode::kInvalidArgument, "'{}' is not a regular file", path);
    }
    files_[file].identity = FileIdentity::of(info);
    if (!seen) return file_changed(path, "it did not exist before");
    if (const auto how = seen->difference(files_[file].identity)) return file_changed(path, *how);
    const std::int64_t file_bytes = info.st_size;
    ReadLimits left = limits;
    left.tensors_max -= tensors_.size();  // the file's tensors were within the limit
    ASSIGN_OR_RETURN(
        std::vector<StoredTensor> tensors,
        read_tensors({.fd = fd, .file_bytes = file_bytes, .path = path, .limits = left})
    );
    for (StoredTensor& tensor : tensors) tensor.file = file;
    RETURN_IF_ERROR(add_tensors(std::move(tensors), path));
    if (auto mapping = MappedFile::of(fd, static_cast<std::size_t>(file_bytes), path))
        files_[file].mapping = *std::move(mapping);
    return Ok{};
}

Result<> Checkpoint::add_tensors(std::vector<StoredTensor> tensors, const std::string& path) {
    for (StoredTensor& tensor : tensors) {
        const auto [place, is_new] = by_name_.emplace(tensor.spec.name, tensors_.size());
        if (!is_new) {
            return make_error(
                ErrorCode::kMalformed,
                "tensor '{}' is both in '{}' and in '{}'",
                tensor.spec.name,
                files_[tensors_[place->second].file].path,
                path
            );
        }
        tensors_.push_back(std::move(tensor));
    }
    return Ok{};
}

Result<Checkpoint> Checkpoint::open(const std::string& directory, const ReadLimits& limits) {
    Checkpoint checkpoint;
    const std::string single = path_in(directory, kSingleFile);
    // is_unchanged() compares these files, too: which of them exist decides what is read.
    checkpoint.seen_.look(path_in(directory, "config.json"));
    checkpoint.seen_.look(path_in(directory, kIndexFile));
    if (is_file(single)) {
        RETURN_IF_ERROR(checkpoint.add_file(single, limits, read_safetensors));
    } else {
        checkpoint.seen_.look(single);
        RETURN_IF_ERROR(checkpoint.open_shards(directory, limits));
    }
    return checkpoint;
}

Result<Checkpoint> Checkpoint::open_adapter(
    const std::string& directory, const ReadLimits& limits
) {
    Checkpoint checkpoint;
    checkpoint.seen_.look(path_in(directory, "adapter_config.json"));
    const std::string file = path_in(directory, kAdapterFile);
    if (is_file(file)) {
        RETURN_IF_ERROR(checkpoint.add_file(file, limits, read_safetensors));
        return checkpoint;
    }
    checkpoint.seen_.look(file);
    const std::string torch_file = path_in(directory, kTorchAdapterFile);
    if (is_file(torch_file)) {
        RETURN_IF_ERROR(checkpoint.add_file(torch_file, limits, read_torch_file));
        return checkpoint;
    }
    return make_error(
        ErrorCode::kNotFound,
        "'{}' holds neither {} nor {}",
        directory,
        kAdapterFile,
        kTorchAdapterFile
    );
}

Result<> Checkpoint::open_shards(const std::string& directory, const ReadLimits& limits) {
    const std::string index_path = path_in(directory, kIndexFile);
    if (!is_file(index_path)) {
        return make_error(
            ErrorCode::kNotFound, "'{}': {}", directory, what_it_is_instead(directory)
        );
    }
    ASSIGN_OR_RETURN(
        const std::string text, MappedFile::read(index_path, bytes_max(limits, kIndexBytesMax))
    );
    ASSIGN_OR_RETURN(const ShardIndex index, parse_shard_index(text, index_path, limits));
    std::vector<std::string> missing;
    for (const std::string& shard : index.shards) {
        if (!is_file(path_in(directory, shard))) missing.push_back(shard);
    }
    if (!missing.empty()) {
        return make_error(
            ErrorCode::kNotFound,
            "'{}': {} of {} shards are missing: {}",
            directory,
            missing.size(),
            index.shards.size(),
            fmt::join(missing, ", ")
        );
    }
    for (const std::string& shard : index.shards) {
        if (limits.is_over()) return reading_was_dropped(directory);
        RETURN_IF_ERROR(add_file(path_in(directory, shard), limits, read_safetensors));
    }
    for (const auto& [tensor, shard] : index.shard_of) {
        const StoredTensor* stored = find(tensor);
        if (stored == nullptr || files_[stored->file].path != path_in(directory, shard)) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}' lists tensor '{}' in '{}', which does not contain it",
                index_path,
                tensor,
                shard
            );
        }
    }
    return Ok{};
}

Checkpoint::Checkpoint(Checkpoint&& other) noexcept
    : seen_(std::exchange(other.seen_, {})),
      files_(std::exchange(other.files_, {})),
      tensors_(std::exchange(other.tensors_, {})),
      by_name_(std::exchange(other.by_name_, {})) {}

Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept {
    std::swap(seen_, other.seen_);
    std::swap(files_, other.files_);
    std::swap(tensors_, other.tensors_);
    std::swap(by_name_, other.by_name_);
    return *this;
}

Checkpoint::~Checkpoint() {
    for (const File& file : files_) ::close(file.fd);
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
    const auto place = by_name_.find(name);
    return place == by_name_.end() ? nullptr : &tensors_[place->second];
}

Result<> Checkpoint::read(const StoredTensor& tensor, std::int64_t begin, std::span<std::byte> out)
    const {
    CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= tensor.bytes);
    const File& file = files_[tensor.file];
    if (read_exactly(file.fd, tensor.file_offset + begin, out)) return is_whole(tensor);
    return data_loss(tensor, errno == 0 ? kCutShort : std::string_view(std::strerror(errno)));
}

std::span<const std::byte> Checkpoint::mapped(const StoredTensor& tensor) const {
    const std::optional<MappedFile>& mapping = files_[tensor.file].mapping;
    if (!mapping) return {};
    return mapping->bytes().subspan(
        static_cast<std::size_t>(tensor.file_offset), static_cast<std::size_t>(tensor.bytes)
    );
}

Result<> Checkpoint::is_whole(const StoredTensor& tensor) const {
    const File& file = files_[tensor.file];
    struct stat info {};
    if (::fstat(file.fd, &info) != 0) return data_loss(tensor, std::strerror(errno));
    if (info.st_size < tensor.file_offset + tensor.bytes) return data_loss(tensor, kCutShort);
    if (const auto how = file.identity.difference(FileIdentity::of(info)))
        return file_changed(file.path, *how);
    return Ok{};
}

Result<> Checkpoint::is_unchanged() const { return seen_.are_unchanged(); }

Error Checkpoint::data_loss(const StoredTensor& tensor, std::string_view why) const {
    return make_error(
        ErrorCode::kDataLoss,
        "cannot read tensor '{}' of '{}': {}",
        tensor.spec.name,
        files_[tensor.file].path,
        why
    );
}

}  // namespace pitstop::checkpoint
