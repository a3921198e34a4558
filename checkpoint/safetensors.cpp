#include "checkpoint/safetensors.h"

#include "base/mapped_file.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

using Json = nlohmann::json;

// The format is little-endian and so is every machine this builds for.
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kCutShort = "the file has become shorter";

struct DtypeRow {
    std::string_view name;
    std::int64_t bytes;
};
constexpr std::array<DtypeRow, 17> kDtypes{{
    // in the order of StoredDtype
    {"BF16", 2},
    {"F16", 2},
    {"F32", 4},
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"C64", 8},
}};

std::optional<StoredDtype> dtype_named(std::string_view name) {
    for (std::size_t i = 0; i < kDtypes.size(); ++i) {
        if (kDtypes[i].name == name) return static_cast<StoredDtype>(i);
    }
    return std::nullopt;
}

// JSON with the checks that the DOM alone does not make: nothing deeper than the format needs (also
// what keeps a hostile header from building a deep tree) and no key twice in one object.
Result<Json> parse_strictly(std::string_view text, int depth_max, const std::string& path) {
    std::string problem;
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
        if (!problem.empty()) return false;
        switch (event) {
            case Json::parse_event_t::object_start:
                keys.emplace_back();
                [[fallthrough]];
            case Json::parse_event_t::array_start:
                if (depth >= depth_max) problem = "it is nested too deeply";
                break;
            case Json::parse_event_t::object_end:
                keys.pop_back();
                break;
            case Json::parse_event_t::key:
                if (!keys.back().insert(value.get<std::string>()).second) {
                    problem = fmt::format("'{}' is there twice", value.get<std::string>());
                }
                break;
            default:
                break;
        }
        return true;
    };
    Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
    if (!problem.empty()) return make_error(ErrorCode::kMalformed, "'{}': {}", path, problem);
    if (json.is_discarded()) return make_error(ErrorCode::kMalformed, "'{}' is not JSON", path);
    if (!json.is_object()) return make_error(ErrorCode::kMalformed, "'{}' is no JSON object", path);
    return json;
}

// A whole number from 0 to 2^62, or nothing.
std::optional<std::int64_t> extent_of(const Json& value) {
    if (!value.is_number_unsigned()) return std::nullopt;
    const auto number = value.get<std::uint64_t>();
    if (number > (std::uint64_t{1} << 62)) return std::nullopt;
    return static_cast<std::int64_t>(number);
}

Result<StoredTensor> parse_tensor(
    const std::string& name, const Json& entry, const std::string& path
) {
    const auto malformed = [&](std::string_view what) {
        return make_error(ErrorCode::kMalformed, "'{}': tensor '{}': {}", path, name, what);
    };
    if (!entry.is_object()) return malformed("its entry is no object");
    if (entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
        return malformed("its entry must have dtype, shape and data_offsets, and nothing else");
    }
    StoredTensor tensor;
    tensor.spec.name = name;
    const Json& dtype = entry["dtype"];
    if (!dtype.is_string()) return malformed("its dtype is no string");
    const std::optional<StoredDtype> known = dtype_named(dtype.get<std::string>());
    if (!known) {
        return make_error(
            ErrorCode::kUnsupported,
            "'{}': tensor '{}' has the unknown dtype '{}'",
            path,
            name,
            dtype.get<std::string>()
        );
    }
    tensor.spec.dtype = *known;
    const Json& shape = entry["shape"];
    if (!shape.is_array() || shape.size() > kTensorDimsMax) {
        return malformed(fmt::format("its shape must be an array of at most {}", kTensorDimsMax));
    }
    __int128 bytes = bytes_of(*known);
    for (const Json& dim : shape) {
        const std::optional<std::int64_t> extent = extent_of(dim);
        if (!extent) return malformed("its shape has an entry that is no extent");
        tensor.spec.shape.push_back(*extent);
        bytes *= *extent;
        if (bytes > (__int128{1} << 62)) return malformed("its shape is too large");
    }
    const Json& offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) return malformed("data_offsets must be a pair");
    const std::optional<std::int64_t> begin = extent_of(offsets[0]);
    const std::optional<std::int64_t> end = extent_of(offsets[1]);
    if (!begin || !end || *begin > *end) return malformed("data_offsets must be 0 <= begin <= end");
    if (*end - *begin != static_cast<std::int64_t>(bytes)) {
        return malformed(fmt::format(
            "{} {} takes {} bytes; its data_offsets hold {}",
            name_of(*known),
            text_of(tensor.spec.shape),
            static_cast<std::int64_t>(bytes),
            *end - *begin
        ));
    }
    tensor.bytes = static_cast<std::int64_t>(bytes);
    tensor.file_offset = *begin;
    return tensor;
}

// Reads exactly out.size() bytes; false with errno set, or with errno 0 at the end of the file.
bool read_exactly(int fd, std::int64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t n = ::pread(fd, out.data(), out.size(), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = 0;
            return false;
        }
        out = out.subspan(static_cast<std::size_t>(n));
        offset += n;
    }
    return true;
}

bool is_file(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// What model.safetensors.index.json says.
struct ShardIndex {
    std::set<std::string> shards{};                 // file names
    std::map<std::string, std::string> shard_of{};  // of each tensor
};

Result<ShardIndex> read_index(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string text, MappedFile::read(path, kIndexBytesMax));
    ASSIGN_OR_RETURN(const Json json, parse_strictly(text, /*depth_max=*/16, path));
    const auto map = json.find("weight_map");
    if (map == json.end() || !map->is_object() || map->empty()) {
        return make_error(
            ErrorCode::kMalformed, "'{}' has no weight_map of tensors to files", path
        );
    }
    ShardIndex index;
    for (const auto& [tensor, file] : map->items()) {
        const std::string name = file.is_string() ? file.get<std::string>() : std::string();
        if (name.empty() || name == "." || name == ".." ||
            name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}': tensor '{}' must name a file of the same directory, not '{}'",
                path,
                tensor,
                name
            );
        }
        index.shards.insert(name);
        index.shard_of.emplace(tensor, name);
    }
    if (index.shards.size() > kShardsMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "'{}' lists {} files; at most {} are read",
            path,
            index.shards.size(),
            kShardsMax
        );
    }
    return index;
}

}  // namespace

std::string_view name_of(StoredDtype dtype) {
    return kDtypes[static_cast<std::size_t>(dtype)].name;
}

std::int64_t bytes_of(StoredDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bytes; }

std::string text_of(std::span<const std::int64_t> shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::vector<StoredTensor>> parse_safetensors_header(
    std::string_view header, std::int64_t data_bytes, const std::string& path
) {
    // Entries are objects of arrays of numbers: nothing is deeper.
    ASSIGN_OR_RETURN(const Json json, parse_strictly(header, /*depth_max=*/3, path));
    std::vector<StoredTensor> tensors;
    for (const auto& [name, entry] : json.items()) {
        if (name == "__metadata__") continue;
        if (tensors.size() == kTensorsMax) {
            return make_error(
                ErrorCode::kTooLarge, "'{}' has more than {} tensors", path, kTensorsMax
            );
        }
        ASSIGN_OR_RETURN(StoredTensor tensor, parse_tensor(name, entry, path));
        tensors.push_back(std::move(tensor));
    }
    // The format wants the bytes covered without a hole, so sorted tensors must follow each other.
    std::vector<const StoredTensor*> in_order;
    in_order.reserve(tensors.size());
    for (const StoredTensor& tensor : tensors) in_order.push_back(&tensor);
    std::stable_sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
        return std::pair(a->file_offset, a->bytes) < std::pair(b->file_offset, b->bytes);
    });
    std::int64_t end = 0;
    const StoredTensor* last = nullptr;
    for (const StoredTensor* tensor : in_order) {
        if (tensor->file_offset < end) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}': tensors '{}' and '{}' overlap",
                path,
                last->spec.name,
                tensor->spec.name
            );
        }
        if (tensor->file_offset > end) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}': {} bytes before tensor '{}' belong to no tensor",
                path,
                tensor->file_offset - end,
                tensor->spec.name
            );
        }
        end = tensor->file_offset + tensor->bytes;
        last = tensor;
        if (end > data_bytes) {
            return make_error(
                ErrorCode::kDataLoss,
                "'{}' ends before tensor '{}' does: the header points to byte {} of {} "
                "(truncated?)",
                path,
                tensor->spec.name,
                end,
                data_bytes
            );
        }
    }
    if (end != data_bytes) {
        return make_error(
            ErrorCode::kMalformed,
            "'{}': the last {} bytes belong to no tensor",
            path,
            data_bytes - end
        );
    }
    return tensors;
}

Result<> Checkpoint::add_file(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument;
        return make_error(code, "cannot open '{}': {}", path, std::strerror(errno));
    }
    const std::size_t file = files_.size();
    files_.push_back({.path = path, .fd = fd});  // closed by the destructor from here on

    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return make_error(ErrorCode::kInvalidArgument, "'{}' is not a regular file", path);
    }
    const std::int64_t file_bytes = info.st_size;
    std::uint64_t length = 0;
    if (file_bytes < 8 || !read_exactly(fd, 0, std::as_writable_bytes(std::span(&length, 1)))) {
        return make_error(
            ErrorCode::kDataLoss, "'{}' has {} bytes: too short for a header", path, file_bytes
        );
    }
    if (length > static_cast<std::uint64_t>(kHeaderBytesMax)) {
        return make_error(
            ErrorCode::kTooLarge,
            "'{}' says its header has {} bytes; at most {} are read",
            path,
            length,
            kHeaderBytesMax
        );
    }
    const auto header_bytes = static_cast<std::int64_t>(length);
    if (header_bytes > file_bytes - 8) {
        return make_error(
            ErrorCode::kDataLoss,
            "'{}' ends inside its header: {} bytes of {} are there (truncated?)",
            path,
            file_bytes - 8,
            header_bytes
        );
    }
    std::string header(static_cast<std::size_t>(header_bytes), '\0');
    if (!read_exactly(fd, 8, std::as_writable_bytes(std::span(header)))) {
        return make_error(ErrorCode::kDataLoss, "cannot read the header of '{}'", path);
    }
    const std::int64_t data_begin = 8 + header_bytes;
    ASSIGN_OR_RETURN(
        std::vector<StoredTensor> tensors,
        parse_safetensors_header(header, file_bytes - data_begin, path)
    );
    for (StoredTensor& tensor : tensors) {
        tensor.file = file;
        tensor.file_offset += data_begin;
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
    if (auto mapping = MappedFile::of(fd, static_cast<std::size_t>(file_bytes), path))
        files_[file].mapping = *std::move(mapping);
    return Ok{};
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
    Checkpoint checkpoint;
    const auto path_of = [&](std::string_view file) {
        return fmt::format("{}/{}", directory, file);
    };
    const std::string single = path_of("model.safetensors");
    const std::string index_path = path_of("model.safetensors.index.json");
    if (is_file(single)) {
        RETURN_IF_ERROR(checkpoint.add_file(single));
        return checkpoint;
    }
    if (!is_file(index_path)) {
        return make_error(
            ErrorCode::kNotFound,
            "'{}' holds neither model.safetensors nor model.safetensors.index.json",
            directory
        );
    }
    ASSIGN_OR_RETURN(const ShardIndex index, read_index(index_path));
    std::vector<std::string> missing;
    for (const std::string& shard : index.shards) {
        if (!is_file(path_of(shard))) missing.push_back(shard);
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
        RETURN_IF_ERROR(checkpoint.add_file(path_of(shard)));
    }
    for (const auto& [tensor, shard] : index.shard_of) {
        const StoredTensor* stored = checkpoint.find(tensor);
        if (stored == nullptr || checkpoint.files_[stored->file].path != path_of(shard)) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}' says that tensor '{}' is in '{}'; it is not",
                index_path,
                tensor,
                shard
            );
        }
    }
    return checkpoint;
}

Checkpoint::Checkpoint(Checkpoint&& other) noexcept
    : files_(std::exchange(other.files_, {})),
      tensors_(std::exchange(other.tensors_, {})),
      by_name_(std::exchange(other.by_name_, {})) {}

Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept {
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
    if (read_exactly(file.fd, tensor.file_offset + begin, out)) return Ok{};
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
    struct stat info {};
    if (::fstat(files_[tensor.file].fd, &info) != 0) return data_loss(tensor, std::strerror(errno));
    if (info.st_size < tensor.file_offset + tensor.bytes) return data_loss(tensor, kCutShort);
    return Ok{};
}

Error Checkpoint::data_loss(const StoredTensor& tensor, std::string_view why) const {
    return make_error(
        ErrorCode::kDataLoss,
        "cannot read tensor '{}' of '{}': {}",
        tensor.spec.name,
        files_[tensor.file].path,
        why
    );
}

}  // namespace pitstop
