#include "tp_worker/sources/source.h"

#include "base/utf8.h"
#include "tp_worker/sources/disk_source.h"
#include "tp_worker/sources/distributed_source.h"
#include "tp_worker/sources/ipc_source.h"
#include "tp_worker/sources/tensor_source.h"

#include <array>
#include <utility>

namespace pitstop {
namespace {

constexpr std::size_t kNameBytesMax = 1024;

// As safetensors writes them, and as torch does.
constexpr std::array<std::pair<std::string_view, StoredDtype>, 22> kDtypes{{
    {"BF16", StoredDtype::kBf16},
    {"bfloat16", StoredDtype::kBf16},
    {"F16", StoredDtype::kF16},
    {"float16", StoredDtype::kF16},
    {"half", StoredDtype::kF16},
    {"F32", StoredDtype::kF32},
    {"float32", StoredDtype::kF32},
    {"float", StoredDtype::kF32},
    {"uint8", StoredDtype::kU8},
    {"int8", StoredDtype::kI8},
    {"bool", StoredDtype::kBool},
    {"float8_e4m3fn", StoredDtype::kF8E4m3},
    {"float8_e5m2", StoredDtype::kF8E5m2},
    {"float8_e8m0fnu", StoredDtype::kF8E8m0},
    {"int16", StoredDtype::kI16},
    {"uint16", StoredDtype::kU16},
    {"int32", StoredDtype::kI32},
    {"uint32", StoredDtype::kU32},
    {"int64", StoredDtype::kI64},
    {"uint64", StoredDtype::kU64},
    {"float64", StoredDtype::kF64},
    {"complex64", StoredDtype::kC64},
}};

}  // namespace

Result<TensorSpec> read_spec(
    std::string_view name, std::string_view dtype, const std::vector<std::int64_t>& shape
) {
    if (name.empty() || name.size() > kNameBytesMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a tensor's name has {} bytes; 1 to {} are accepted",
            name.size(),
            kNameBytesMax
        );
    }
    if (shape.size() > kTensorDimsMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' has {} dimensions; at most {} are accepted",
            name,
            shape.size(),
            kTensorDimsMax
        );
    }
    if (dtype.starts_with("torch.")) dtype.remove_prefix(6);
    for (const auto& [known, stored] : kDtypes) {
        if (known != dtype) continue;
        TensorSpec spec{.name = std::string(name), .dtype = stored, .shape = shape};
        ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t bytes, bytes_of(spec));
        return spec;
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "'{}' has dtype '{}'; accepted are BF16, F16 and F32",
        name,
        utf8_prefix(dtype, 64)
    );
}

Result<std::int64_t> bytes_of(const TensorSpec& spec) {
    constexpr std::int64_t kBytesMax = std::int64_t{1} << 62;
    std::int64_t bytes = bytes_of(spec.dtype);
    bool is_empty = false;
    for (const std::int64_t extent : spec.shape) {
        if (extent < 0) {
            return make_error(
                ErrorCode::kInvalidArgument, "'{}' has shape {}", spec.name, text_of(spec.shape)
            );
        }
        if (extent == 0) {
            is_empty = true;
        } else if (bytes > kBytesMax / extent) {
            return make_error(
                ErrorCode::kTooLarge, "'{}' has shape {}", spec.name, text_of(spec.shape)
            );
        } else {
            bytes *= extent;
        }
    }
    return is_empty ? 0 : bytes;
}

Result<> deliver(const SourceArgs& args) {
    switch (args.source.kind) {
        case SourceKind::kDisk:
            return deliver_disk(args);
        case SourceKind::kIpc:
            return deliver_ipc(args);
        case SourceKind::kTensors:
            return deliver_tensors(args);
        case SourceKind::kDistributed:
            return deliver_distributed(args);
        case SourceKind::kBuckets:
            break;
    }
    return make_error(ErrorCode::kInvalidArgument, "a session's buckets bring the bytes");
}

Result<> decline(const SourceArgs& args, const Error& why) {
    // The others send nothing to this rank alone.
    return args.source.kind == SourceKind::kIpc ? decline_ipc(args, why) : why;
}

}  // namespace pitstop
