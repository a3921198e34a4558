#include "tp_worker/sources/source.h"

#include "base/utf8.h"
#include "tp_worker/sources/disk_source.h"
#include "tp_worker/sources/distributed_source.h"
#include "tp_worker/sources/ipc_source.h"
#include "tp_worker/sources/tensor_source.h"

#include <array>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kNameBytesMax = 1024;

// Accepts dtypes in safetensors' spelling and in torch's.
constexpr std::array<std::pair<std::string_view, checkpoint::StoredDtype>, 22> kDtypes{{
    {"BF16", checkpoint::StoredDtype::kBf16},
    {"bfloat16", checkpoint::StoredDtype::kBf16},
    {"F16", checkpoint::StoredDtype::kF16},
    {"float16", checkpoint::StoredDtype::kF16},
    {"half", checkpoint::StoredDtype::kF16},
    {"F32", checkpoint::StoredDtype::kF32},
    {"float32", checkpoint::StoredDtype::kF32},
    {"float", checkpoint::StoredDtype::kF32},
    {"uint8", checkpoint::StoredDtype::kU8},
    {"int8", checkpoint::StoredDtype::kI8},
    {"bool", checkpoint::StoredDtype::kBool},
    {"float8_e4m3fn", checkpoint::StoredDtype::kF8E4m3},
    {"float8_e5m2", checkpoint::StoredDtype::kF8E5m2},
    {"float8_e8m0fnu", checkpoint::StoredDtype::kF8E8m0},
    {"int16", checkpoint::StoredDtype::kI16},
    {"uint16", checkpoint::StoredDtype::kU16},
    {"int32", checkpoint::StoredDtype::kI32},
    {"uint32", checkpoint::StoredDtype::kU32},
    {"int64", checkpoint::StoredDtype::kI64},
    {"uint64", checkpoint::StoredDtype::kU64},
    {"float64", checkpoint::StoredDtype::kF64},
    {"complex64", checkpoint::StoredDtype::kC64},
}};

}  // namespace

Result<checkpoint::TensorSpec> read_spec(
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
    if (shape.size() > checkpoint::kTensorDimsMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' has {} dimensions; at most {} are accepted",
            name,
            shape.size(),
            checkpoint::kTensorDimsMax
        );
    }
    if (dtype.starts_with("torch.")) dtype.remove_prefix(6);
    for (const auto& [known, stored] : kDtypes) {
        if (known != dtype) continue;
        checkpoint::TensorSpec spec{.name = std::string(name), .dtype = stored, .shape = shape};
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

Result<std::int64_t> bytes_of(const checkpoint::TensorSpec& spec) {
    constexpr std::int64_t kBytesMax = std::int64_t{1} << 62;
    std::int64_t bytes = bytes_of(spec.dtype);
    bool is_empty = false;
    for (const std::int64_t extent : spec.shape) {
        if (extent < 0) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "'{}' has shape {}; accepted are sizes of 0 or more",
                spec.name,
                checkpoint::text_of(spec.shape)
            );
        }
        if (extent == 0) {
            is_empty = true;
        } else if (bytes > kBytesMax / extent) {
            return make_error(
                ErrorCode::kTooLarge,
                "'{}' has shape {}, which is too large",
                spec.name,
                checkpoint::text_of(spec.shape)
            );
        } else {
            bytes *= extent;
        }
    }
    return is_empty ? 0 : bytes;
}

Result<> deliver(const SourceArgs& args) {
    switch (args.source.kind) {
        case messages::SourceKind::kDisk:
            return deliver_disk(args);
        case messages::SourceKind::kIpc:
            return deliver_ipc(args);
        case messages::SourceKind::kTensors:
            return deliver_tensors(args);
        case messages::SourceKind::kDistributed:
            return deliver_distributed(args);
        case messages::SourceKind::kBuckets:
            break;
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "a session has no source of its own; its buckets bring the bytes"
    );
}

Result<> decline(const SourceArgs& args, const Error& why) {
    if (args.source.kind == messages::SourceKind::kIpc) return decline_ipc(args, why);
    if (args.source.kind == messages::SourceKind::kTensors) return decline_tensors(args, why);
    return why;  // only these sources have a sender that waits for this rank
}

}  // namespace pitstop::tp_worker
