#include "checkpoint/safetensors_header.h"

#include "base/json_reader.h"
#include "base/utf8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace pitstop::checkpoint {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kQuotedBytesMax = 64;  // of an unknown dtype's name, in an error
constexpr std::uint64_t kExtentMax = std::uint64_t{1} << 62;

struct DtypeRow {
    std::string_view name;
    std::int64_t bytes;
};
constexpr std::array<DtypeRow, 17> kDtypes{{
    // In the order of StoredDtype.
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

// Collects the entries and checks each by itself.
class HeaderReader final : public JsonReader {
  public:
    explicit HeaderReader(const HeaderArgs& args)
        : JsonReader(
              fmt::format("'{}': ", args.path),
              {.depth_max = kHeaderDepthMax, .interrupt = interrupt_of(args.path, args.limits)}
          ),
          path_(args.path),
          tensors_max_(args.limits.tensors_max) {}

    [[nodiscard]] std::vector<StoredTensor> take_tensors() { return std::move(tensors_); }

  private:
    enum class Field : std::uint8_t { kDtype, kShape, kOffsets };
    static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

    [[nodiscard]] Error malformed(std::string_view what) const {
        return make_error(
            ErrorCode::kMalformed, "'{}': tensor '{}': {}", path_, tensor_.spec.name, what
        );
    }
    // Returns what is wrong if a field has a value of another type.
    [[nodiscard]] Error misplaced() const {
        if (depth() == 1) return malformed("its entry is not an object");
        if (field_ == Field::kDtype) return malformed("its dtype is not a string");
        if (field_ == Field::kOffsets) return malformed("data_offsets must be a pair");
        if (depth() == 2)
            return malformed(fmt::format("its shape must be an array of at most {}", kTensorDimsMax)
            );
        return malformed("its shape has an entry that is not a size");
    }

    std::optional<Error> on_key(std::string& name) override {
        if (depth() == 1) return begin_entry(name);
        if (is_metadata_) return std::nullopt;
        for (std::size_t i = 0; i < kFields.size(); ++i) {
            if (name != kFields[i]) continue;
            if (std::exchange(is_there_[i], true))
                return malformed(fmt::format("its '{}' appears twice", name));
            field_ = static_cast<Field>(i);
            return std::nullopt;
        }
        return malformed("its entry must have dtype, shape and data_offsets, and nothing else");
    }

    std::optional<Error> begin_entry(std::string& name) {
        is_metadata_ = name == kMetadata;
        if (is_metadata_) return std::nullopt;
        if (tensors_.size() == tensors_max_) {
            return make_error(
                ErrorCode::kTooLarge,
                "'{}' has more than {} tensors, the most accepted for this model",
                path_,
                tensors_max_
            );
        }
        if (name.size() > kTensorNameBytesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "'{}': the name of a tensor has {} bytes; at most {} are accepted",
                path_,
                name.size(),
                kTensorNameBytesMax
            );
        }
        tensor_ = {};
        tensor_.spec.name = std::move(name);
        is_there_ = {};
        num_offsets_ = 0;
        return std::nullopt;
    }

    std::optional<Error> on_object() override {
        if (is_metadata_ || depth() == 1) return std::nullopt;
        return misplaced();
    }
    std::optional<Error> on_array() override {
        if (is_metadata_ || (depth() == 2 && field_ != Field::kDtype)) return std::nullopt;
        return misplaced();
    }

    std::optional<Error> on_scalar(const Scalar& scalar) override {
        if (is_metadata_) return std::nullopt;
        if (depth() == 2 && field_ == Field::kDtype && scalar.text != nullptr)
            return take_dtype(*scalar.text);
        if (depth() < 3) return misplaced();
        const bool is_extent =
            scalar.other.is_number_unsigned() && scalar.other.get<std::uint64_t>() <= kExtentMax;
        const std::int64_t extent = is_extent ? scalar.other.get<std::int64_t>() : 0;
        if (field_ == Field::kShape) {
            if (!is_extent) return misplaced();
            if (tensor_.spec.shape.size() == kTensorDimsMax) {
                return malformed(
                    fmt::format("its shape must be an array of at most {}", kTensorDimsMax)
                );
            }
            tensor_.spec.shape.push_back(extent);
            return std::nullopt;
        }
        if (num_offsets_ == offsets_.size()) return misplaced();
        if (!is_extent) return malformed("data_offsets must be 0 <= begin <= end");
        offsets_[num_offsets_++] = extent;
        return std::nullopt;
    }

    std::optional<Error> take_dtype(const std::string& name) {
        const std::optional<StoredDtype> known = dtype_named(name);
        if (!known) {
            return make_error(
                ErrorCode::kUnsupported,
                "'{}': tensor '{}' has the unknown dtype '{}'",
                path_,
                tensor_.spec.name,
                utf8_prefix(name, kQuotedBytesMax)
            );
        }
        tensor_.spec.dtype = *known;
        return std::nullopt;
    }

    std::optional<Error> on_end() override {
        if (depth() != 1 || is_metadata_) return std::nullopt;
        if (std::ranges::find(is_there_, false) != is_there_.end())
            return malformed("its entry must have dtype, shape and data_offsets, and nothing else");
        if (num_offsets_ != offsets_.size()) return malformed("data_offsets must be a pair");
        const auto [begin, end] = offsets_;
        if (begin > end) return malformed("data_offsets must be 0 <= begin <= end");
        __int128 bytes = bytes_of(tensor_.spec.dtype);
        for (const std::int64_t extent : tensor_.spec.shape) {
            bytes *= extent;
            if (bytes > static_cast<__int128>(kExtentMax))
                return malformed("its shape is too large");
        }
        tensor_.bytes = static_cast<std::int64_t>(bytes);
        tensor_.file_offset = begin;
        if (end - begin != tensor_.bytes) {
            return malformed(fmt::format(
                "{} {} needs {} bytes; its data_offsets span {}",
                name_of(tensor_.spec.dtype),
                text_of(tensor_.spec.shape),
                tensor_.bytes,
                end - begin
            ));
        }
        tensors_.push_back(std::move(tensor_));
        return std::nullopt;
    }

    const std::string& path_;
    std::size_t tensors_max_;
    std::vector<StoredTensor> tensors_{};

    // The entry being read:
    bool is_metadata_ = false;
    StoredTensor tensor_{};
    std::array<bool, kFields.size()> is_there_{};
    Field field_ = Field::kDtype;
    std::array<std::int64_t, 2> offsets_{};
    std::size_t num_offsets_ = 0;
};

// Returns the indices of the tensors, sorted.
template <class Less>
std::vector<const StoredTensor*> sorted(const std::vector<StoredTensor>& tensors, Less less) {
    std::vector<const StoredTensor*> in_order;
    in_order.reserve(tensors.size());
    for (const StoredTensor& tensor : tensors) in_order.push_back(&tensor);
    std::ranges::stable_sort(in_order, [&](const auto* a, const auto* b) { return less(*a, *b); });
    return in_order;
}

Result<> check_names(const std::vector<StoredTensor>& tensors, const std::string& path) {
    const auto by_name = sorted(tensors, [](const StoredTensor& a, const StoredTensor& b) {
        return a.spec.name < b.spec.name;
    });
    const auto twice = std::ranges::adjacent_find(by_name, [](const auto* a, const auto* b) {
        return a->spec.name == b->spec.name;
    });
    if (twice == by_name.end()) return Ok{};
    return make_error(
        ErrorCode::kMalformed, "'{}': tensor '{}' appears twice", path, (*twice)->spec.name
    );
}

// The format requires that tensors cover all bytes without a hole, so sorted tensors must follow
// each other.
Result<> check_places(const std::vector<StoredTensor>& tensors, const HeaderArgs& args) {
    const auto by_place = sorted(tensors, [](const StoredTensor& a, const StoredTensor& b) {
        return std::pair(a.file_offset, a.bytes) < std::pair(b.file_offset, b.bytes);
    });
    std::int64_t end = 0;
    const StoredTensor* last = nullptr;
    for (const StoredTensor* tensor : by_place) {
        if (tensor->file_offset < end) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}': tensors '{}' and '{}' overlap",
                args.path,
                last->spec.name,
                tensor->spec.name
            );
        }
        if (tensor->file_offset > end) {
            return make_error(
                ErrorCode::kMalformed,
                "'{}': {} bytes before tensor '{}' belong to no tensor",
                args.path,
                tensor->file_offset - end,
                tensor->spec.name
            );
        }
        end = tensor->file_offset + tensor->bytes;
        last = tensor;
        if (end > args.data_bytes) {
            return make_error(
                ErrorCode::kDataLoss,
                "'{}' ends before tensor '{}' does: the header points to byte {} of {} "
                "(truncated?)",
                args.path,
                tensor->spec.name,
                end,
                args.data_bytes
            );
        }
    }
    if (end == args.data_bytes) return Ok{};
    return make_error(
        ErrorCode::kMalformed,
        "'{}': the last {} bytes belong to no tensor",
        args.path,
        args.data_bytes - end
    );
}

}  // namespace

std::string_view name_of(StoredDtype dtype) {
    return kDtypes[static_cast<std::size_t>(dtype)].name;
}

std::int64_t bytes_of(StoredDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bytes; }

std::string text_of(std::span<const std::int64_t> shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

Interrupt interrupt_of(const std::string& path, const ReadLimits& limits) {
    if (limits.is_dropped == nullptr) return {};
    return [path, limits]() -> std::optional<Error> {
        if (!limits.is_over()) return std::nullopt;
        return reading_was_dropped(path);
    };
}

Error reading_was_dropped(const std::string& path) {
    return make_error(ErrorCode::kAborted, "the stage was dropped while '{}' was read", path);
}

Result<std::vector<StoredTensor>> parse_safetensors_header(const HeaderArgs& args) {
    HeaderReader reader(args);
    RETURN_IF_ERROR(reader.read(args.json));
    std::vector<StoredTensor> tensors = reader.take_tensors();
    RETURN_IF_ERROR(check_names(tensors, args.path));
    RETURN_IF_ERROR(check_places(tensors, args));
    return tensors;
}

}  // namespace pitstop::checkpoint
