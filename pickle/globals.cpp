#include "pickle/globals.h"

#include <algorithm>
#include <array>

namespace pitstop::pickle {
namespace {

// Torch's canonical dtype names, which pickle uses (torch.half is float16).
constexpr std::array<std::string_view, 20> kDTypes{
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "uint16",
    "uint32",
    "uint64",
    "float4_e2m1fn_x2",
    "complex64",
};

constexpr std::array<std::string_view, 10> kExceptions{
    "RuntimeError",
    "Exception",
    "ValueError",
    "TypeError",
    "AssertionError",
    "KeyError",
    "OSError",
    "MemoryError",
    "TimeoutError",
    "NotImplementedError",
};

// The classes of storages that torch.save names; safetensors has the dtypes of all of them.
constexpr std::array<std::string_view, 11> kStorages{
    "BFloat16Storage",
    "HalfStorage",
    "FloatStorage",
    "DoubleStorage",
    "ByteStorage",
    "CharStorage",
    "ShortStorage",
    "IntStorage",
    "LongStorage",
    "BoolStorage",
    "ComplexFloatStorage",
};

constexpr unsigned bit(Channel channel) { return 1u << static_cast<unsigned>(channel); }
constexpr unsigned kHandles = bit(Channel::kHandle) | bit(Channel::kTensors);
constexpr unsigned kAll = kHandles | bit(Channel::kBucket) | bit(Channel::kNcclId);
constexpr unsigned kTensors = bit(Channel::kTensors);
constexpr unsigned kId = bit(Channel::kNcclId);
constexpr unsigned kSaved = bit(Channel::kSaved);

struct Entry {
    std::string_view module;
    std::string_view name;
    Global global;
    unsigned channels;
};

constexpr std::string_view kReductions = "torch.multiprocessing.reductions";
constexpr std::array kEntries{
    Entry{"torch", "Size", Global::kSize, kAll},
    Entry{"torch", "Tensor", Global::kTensorClass, kHandles},
    Entry{"torch._tensor", "Tensor", Global::kTensorClass, kHandles},
    Entry{"torch.nn.parameter", "Parameter", Global::kTensorClass, kTensors},
    Entry{"torch.storage", "TypedStorage", Global::kStorageClass, kHandles},
    Entry{"torch.storage", "UntypedStorage", Global::kStorageClass, kHandles},
    Entry{"collections", "OrderedDict", Global::kOrderedDict, kTensors | kSaved},
    Entry{"torch._utils", "_rebuild_tensor_v2", Global::kRebuildTensorV2, kSaved},
    Entry{"torch._utils", "_rebuild_parameter", Global::kRebuildParameter, kSaved},
    Entry{kReductions, "rebuild_cuda_tensor", Global::kRebuildCudaTensor, kHandles},
    Entry{
        "sglang.srt.utils.patch_torch",
        "_rebuild_cuda_tensor_modified",
        Global::kRebuildCudaTensor,
        kHandles},
    Entry{
        "sglang.srt.patch_torch",
        "_rebuild_cuda_tensor_modified",
        Global::kRebuildCudaTensor,
        kHandles},
    Entry{kReductions, "rebuild_tensor", Global::kRebuildTensor, kHandles},
    Entry{kReductions, "rebuild_typed_storage", Global::kRebuildTypedStorage, kHandles},
    Entry{kReductions, "rebuild_storage_filename", Global::kRebuildStorageFilename, kHandles},
    Entry{
        "sglang.srt.weight_sync.tensor_bucket",
        "FlattenedTensorMetadata",
        Global::kFlattenedTensorMetadata,
        kTensors},
    Entry{
        "sglang.srt.model_executor.model_runner",
        "LocalSerializedTensor",
        Global::kLocalSerializedTensor,
        kTensors},
    Entry{
        "sglang.srt.model_executor.model_runner_components.weight_updater",
        "LocalSerializedTensor",
        Global::kLocalSerializedTensor,
        kTensors},
    Entry{"_ctypes", "_unpickle", Global::kUnpickleCtypes, kId},
    Entry{
        "vllm.distributed.device_communicators.pynccl_wrapper",
        "ncclUniqueId",
        Global::kNcclUniqueId,
        kId},
    Entry{
        "sglang.srt.distributed.device_communicators.pynccl_wrapper",
        "ncclUniqueId",
        Global::kNcclUniqueId,
        kId},
};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<KnownGlobal> find_global(
    std::string_view module, std::string_view name, Channel channel
) {
    if (module == "torch" && contains(kDTypes, name) && channel != Channel::kNcclId) {
        return KnownGlobal{Kind::kDType, Global::kNone, std::string(name)};
    }
    if (module == "builtins" && contains(kExceptions, name) && channel == Channel::kBucket) {
        return KnownGlobal{Kind::kGlobal, Global::kException, std::string(name)};
    }
    if (module == "torch" && contains(kStorages, name) && channel == Channel::kSaved) {
        return KnownGlobal{Kind::kGlobal, Global::kTypedStorageClass, std::string(name)};
    }
    for (const Entry& entry : kEntries) {
        if (entry.module == module && entry.name == name && (entry.channels & bit(channel)) != 0) {
            return KnownGlobal{Kind::kGlobal, entry.global, std::string(name)};
        }
    }
    return std::nullopt;
}

}  // namespace pitstop::pickle
