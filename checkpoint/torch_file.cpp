#include "checkpoint/torch_file.h"

#include "base/string_map.h"
#include "checkpoint/open_file.h"
#include "checkpoint/zip_entries.h"
#include "pickle/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::checkpoint {
namespace {

using pickle::Document;
using pickle::Global;
using pickle::Kind;
using pickle::Node;

constexpr std::string_view kZipMark = "PK\3\4";
constexpr std::string_view kPickle = "data.pkl";

constexpr std::array<std::pair<std::string_view, StoredDtype>, 11> kDtypeOfStorage{{
    {"BFloat16Storage", StoredDtype::kBf16},
    {"HalfStorage", StoredDtype::kF16},
    {"FloatStorage", StoredDtype::kF32},
    {"DoubleStorage", StoredDtype::kF64},
    {"ByteStorage", StoredDtype::kU8},
    {"CharStorage", StoredDtype::kI8},
    {"ShortStorage", StoredDtype::kI16},
    {"IntStorage", StoredDtype::kI32},
    {"LongStorage", StoredDtype::kI64},
    {"BoolStorage", StoredDtype::kBool},
    {"ComplexFloatStorage", StoredDtype::kC64},
}};

std::optional<StoredDtype> dtype_of(std::string_view storage) {
    for (const auto& [name, dtype] : kDtypeOfStorage) {
        if (name == storage) return dtype;
    }
    return std::nullopt;
}

// Returns the numbers of a shape or of strides; nothing if a value is something else, or negative.
std::optional<std::vector<std::int64_t>> sizes_in(const Document& document, const Node& node) {
    if (node.kind != Kind::kTuple && node.kind != Kind::kShape) return std::nullopt;
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
        const Node& size = document.child(node, i);
        if (size.kind != Kind::kInt || size.integer < 0) return std::nullopt;
        sizes.push_back(size.integer);
    }
    return sizes;
}

// Returns the number of elements; nothing if it is larger than `most`.
std::optional<std::int64_t> num_elements(std::span<const std::int64_t> shape, std::int64_t most) {
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    std::int64_t num = 1;
    for (const std::int64_t size : shape) {
        if (size > most / num) return std::nullopt;
        num *= size;
    }
    return num;
}

bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
    std::int64_t wanted = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
        if (shape[i] == 1) continue;
        if (strides[i] != wanted) return false;
        wanted *= shape[i];
    }
    return true;
}

class TorchFile {
  public:
    explicit TorchFile(const OpenFile& args) : args_(args) {}

    Result<std::vector<StoredTensor>> read() {
        RETURN_IF_ERROR(check_format());
        ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries, read_zip_entries(args_));
        RETURN_IF_ERROR(index(entries));
        RETURN_IF_ERROR(check_byte_order());
        const ZipEntry* pickled = find(kPickle);
        if (pickled->bytes > static_cast<std::int64_t>(pickle::kMessageBytesMax)) {
            return make_error(
                ErrorCode::kTooLarge,
                "'{}': its data.pkl has {} bytes; at most {} are accepted",
                args_.path,
                pickled->bytes,
                pickle::kMessageBytesMax
            );
        }
        ASSIGN_OR_RETURN(const std::string bytes, content(*pickled));
        Result<Document> document =
            pickle::read(std::as_bytes(std::span(bytes)), pickle::Channel::kSaved);
        if (!document) {
            Error error = std::move(document).error();
            error.message = fmt::format("'{}': {}", args_.path, error.message);
            return error;
        }
        return tensors_in(*document);
    }

  private:
    [[nodiscard]] Result<> check_format() const {
        std::array<char, kZipMark.size()> begin{};
        if (args_.file_bytes < std::ssize(begin) ||
            !read_exactly(args_.fd, 0, std::as_writable_bytes(std::span(begin)))) {
            return make_error(
                ErrorCode::kDataLoss,
                "'{}' has {} bytes: too short for a file of torch.save",
                args_.path,
                args_.file_bytes
            );
        }
        if (std::string_view(begin.data(), begin.size()) == kZipMark) return Ok{};
        return make_error(
            ErrorCode::kUnsupported,
            "'{}' is not a zip archive, which torch.save writes since PyTorch 1.6; save the "
            "adapter "
            "again (PEFT: save_pretrained)",
            args_.path
        );
    }

    // All files of the archive are in one folder, beside data.pkl.
    Result<> index(std::span<const ZipEntry> entries) {
        std::optional<std::string_view> folder;
        for (const ZipEntry& entry : entries) {
            const std::size_t slash = entry.name.find('/');
            if (slash == std::string::npos ||
                std::string_view(entry.name).substr(slash + 1) != kPickle)
                continue;
            if (folder) return malformed("it has data.pkl twice");
            folder = std::string_view(entry.name).substr(0, slash + 1);
        }
        if (!folder) return malformed("a zip archive without data.pkl is no file of torch.save");
        for (const ZipEntry& entry : entries) {
            if (!entry.name.starts_with(*folder)) continue;
            const auto [place, is_new] = files_.emplace(entry.name.substr(folder->size()), entry);
            if (!is_new) return malformed(fmt::format("it has '{}' twice", place->first));
        }
        return Ok{};
    }

    Result<> check_byte_order() {
        const ZipEntry* order = find("byteorder");
        if (order == nullptr) return Ok{};  // PyTorch before 2.1
        constexpr std::string_view kLittle = "little";
        if (order->bytes == std::ssize(kLittle)) {
            ASSIGN_OR_RETURN(const std::string text, content(*order));
            if (text == kLittle) return Ok{};
        }
        return make_error(
            ErrorCode::kUnsupported, "'{}' is of a machine that is not little-endian", args_.path
        );
    }

    Result<std::vector<StoredTensor>> tensors_in(const Document& document) const {
        const Node& root = document.root();
        if (root.kind != Kind::kDict) return malformed("it has no dict of tensors");
        std::vector<StoredTensor> tensors;
        for (std::size_t i = 0; i + 1 < root.children.size(); i += 2) {
            if (args_.limits.is_over()) return reading_was_dropped(args_.path);
            if (tensors.size() == args_.limits.tensors_max) {
                return make_error(
                    ErrorCode::kTooLarge,
                    "'{}' has more than {} tensors, the most accepted for this model",
                    args_.path,
                    args_.limits.tensors_max
                );
            }
            const std::string& name = document.child(root, i).text;
            if (name.size() > kTensorNameBytesMax) {
                return make_error(
                    ErrorCode::kTooLarge,
                    "'{}': the name of a tensor has {} bytes; at most {} are accepted",
                    args_.path,
                    name.size(),
                    kTensorNameBytesMax
                );
            }
            ASSIGN_OR_RETURN(
                StoredTensor tensor, tensor_of(document, name, document.child(root, i + 1))
            );
            tensors.push_back(std::move(tensor));
        }
        return tensors;
    }

    Result<StoredTensor> tensor_of(
        const Document& document, const std::string& name, const Node& value
    ) const {
        const auto wrong = [&](std::string_view what) {
            return malformed(fmt::format("tensor '{}': {}", name, what));
        };
        const auto unsupported = [&](std::string_view what) {
            return make_error(ErrorCode::kUnsupported, "'{}': '{}' {}", args_.path, name, what);
        };
        const auto is_record = [](const Node& node, Global global) {
            return node.kind == Kind::kRecord && node.global == global;
        };
        const bool is_parameter = is_record(value, Global::kRebuildParameter);
        const Node& record = is_parameter ? document.child(value, 0) : value;
        if (!is_record(record, Global::kRebuildTensorV2)) return unsupported("is no tensor");
        const Node& storage = document.child(record, 0);
        const Node& offset = document.child(record, 1);
        auto shape = sizes_in(document, document.child(record, 2));
        const auto strides = sizes_in(document, document.child(record, 3));
        if (!is_record(storage, Global::kSavedStorage) || offset.kind != Kind::kInt || !shape ||
            !strides || strides->size() != shape->size())
            return wrong("its record is not one of torch.save");
        if (shape->size() > kTensorDimsMax)
            return wrong(fmt::format(
                "it has {} dimensions; at most {} are accepted", shape->size(), kTensorDimsMax
            ));
        const std::optional<StoredDtype> dtype = dtype_of(document.child(storage, 1).text);
        const ZipEntry* file = find(fmt::format("data/{}", document.child(storage, 2).text));
        if (!dtype || file == nullptr) return wrong("the file of its storage is missing");
        const std::int64_t width = bytes_of(*dtype);
        const std::int64_t num_stored = file->bytes / width;
        const std::optional<std::int64_t> num = num_elements(*shape, num_stored);
        if (!num || offset.integer < 0 || offset.integer > num_stored - *num)
            return wrong("it goes beyond its storage");
        if (*num > 0 && !is_contiguous(*shape, *strides))
            return unsupported("is not contiguous; save tensor.contiguous()");
        return StoredTensor{
            .spec = {.name = name, .dtype = *dtype, .shape = *std::move(shape)},
            .bytes = *num * width,
            .file_offset = file->begin + offset.integer * width};
    }

    [[nodiscard]] Result<std::string> content(const ZipEntry& entry) const {
        std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
        if (read_exactly(args_.fd, entry.begin, std::as_writable_bytes(std::span(bytes))))
            return bytes;
        return make_error(ErrorCode::kDataLoss, "cannot read '{}'", args_.path);
    }
    // Returns a file of the archive's folder; null if there is none.
    [[nodiscard]] const ZipEntry* find(std::string_view name) const {
        const auto place = files_.find(name);
        return place == files_.end() ? nullptr : &place->second;
    }
    [[nodiscard]] Error malformed(std::string_view what) const {
        return make_error(ErrorCode::kMalformed, "'{}': {}", args_.path, what);
    }

    const OpenFile& args_;
    StringMap<ZipEntry> files_{};
};

}  // namespace

Result<std::vector<StoredTensor>> read_torch_file(const OpenFile& args) {
    return TorchFile(args).read();
}

}  // namespace pitstop::checkpoint
