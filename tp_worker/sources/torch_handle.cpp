#include "tp_worker/sources/torch_handle.h"

#include "base/cut_guard.h"
#include "kernels/runtime/device_memory.h"
#include "tp_worker/sources/source.h"

#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

using pickle::Document;
using pickle::Global;
using pickle::Kind;
using pickle::Node;

Error bad_handle(std::string_view what) {
    return make_error(ErrorCode::kInvalidArgument, "a tensor handle: {}", what);
}

bool is_ints(const Document& document, const Node& node) {
    if (node.kind != Kind::kTuple && node.kind != Kind::kShape && node.kind != Kind::kList)
        return false;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
        if (document.child(node, i).kind != Kind::kInt) return false;
    }
    return true;
}

std::vector<std::int64_t> ints(const Document& document, const Node& node) {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < node.children.size(); ++i)
        values.push_back(document.child(node, i).integer);
    return values;
}

bool is_text(const Node& node) { return node.kind == Kind::kString || node.kind == Kind::kBytes; }

// Reads rebuild_cuda_tensor's arguments, from a call or from a tuple of (function, arguments).
Result<TensorHandle> read_cuda(const Document& document, const Node& arguments) {
    constexpr std::size_t kArguments = 15;
    constexpr std::int64_t kCountersMax = 10'000;
    constexpr std::size_t kEventBytes = 64;
    if (arguments.children.size() != kArguments)
        return bad_handle("rebuild_cuda_tensor takes 15 arguments");
    const auto at = [&](std::size_t i) -> const Node& { return document.child(arguments, i); };
    if (!is_ints(document, at(1)) || !is_ints(document, at(2)) || at(3).kind != Kind::kInt ||
        at(5).kind != Kind::kDType) {
        return bad_handle("size, stride, offset or dtype are not arguments of rebuild_cuda_tensor");
    }
    TensorHandle handle{
        .dtype = at(5).text,
        .shape = ints(document, at(1)),
        .stride = ints(document, at(2)),
        .offset = at(3).integer,
        .cuda = std::make_unique<CudaHandle>(),
    };
    CudaHandle& cuda = *handle.cuda;
    if (at(6).kind == Kind::kString) {
        cuda.device_uuid = at(6).text;
    } else if (at(6).kind != Kind::kInt) {
        return bad_handle("the device is neither an index nor a uuid");
    }
    if (at(8).kind != Kind::kInt || at(9).kind != Kind::kInt || at(8).integer < 0 ||
        at(9).integer < 0) {
        return bad_handle("storage size or offset is not a size");
    }
    cuda.storage_bytes = at(8).integer;
    cuda.storage_offset = at(9).integer;
    if (at(7).kind == Kind::kNone && cuda.storage_bytes == 0) return handle;  // an empty storage
    if (at(7).kind != Kind::kBytes || at(7).text.empty())
        return bad_handle("the storage handle is not bytes");
    cuda.memory = at(7).text;
    if (!is_text(at(11)) || at(12).kind != Kind::kInt || at(12).integer < 0 ||
        at(12).integer >= kCountersMax) {
        return bad_handle("the reference counter's place is not valid");
    }
    cuda.counter = at(11).text;
    cuda.counter_index = at(12).integer;
    if (at(13).kind != Kind::kBytes || at(13).text.size() != kEventBytes ||
        at(14).kind != Kind::kBool) {
        return bad_handle("the event handle is not 64 bytes and a flag");
    }
    cuda.event = at(13).text;
    cuda.waits_for_event = at(14).integer != 0;
    return handle;
}

// Reads rebuild_tensor(class, rebuild_typed_storage(rebuild_storage_filename(...),
// dtype), metadata).
Result<TensorHandle> read_cpu(const Document& document, const Node& record) {
    const Node& typed = document.child(record, 1);
    const Node& metadata = document.child(record, 2);
    if (typed.kind != Kind::kRecord || typed.global != Global::kRebuildTypedStorage ||
        metadata.kind != Kind::kTuple || metadata.children.size() != 4 ||
        document.child(metadata, 0).kind != Kind::kInt ||
        !is_ints(document, document.child(metadata, 1)) ||
        !is_ints(document, document.child(metadata, 2))) {
        return bad_handle("rebuild_tensor's arguments are not a storage and its view");
    }
    const Node& untyped = document.child(typed, 0);
    const Node& dtype = document.child(typed, 1);
    if (untyped.kind != Kind::kRecord || untyped.global != Global::kRebuildStorageFilename ||
        dtype.kind != Kind::kDType || !is_text(document.child(untyped, 2)) ||
        document.child(untyped, 3).kind != Kind::kInt) {
        return bad_handle("not a storage in shared memory (sharing strategy file_system)");
    }
    TensorHandle handle{
        .dtype = dtype.text,
        .shape = ints(document, document.child(metadata, 1)),
        .stride = ints(document, document.child(metadata, 2)),
        .offset = document.child(metadata, 0).integer,
        .storage = &untyped,
        .segment = document.child(untyped, 2).text,
        .segment_bytes = document.child(untyped, 3).integer,
    };
    return handle;
}

struct Extent {
    std::int64_t elements = 1;
    std::int64_t last = 0;  // index of the last element in the storage, from the tensor's first
    bool is_contiguous = true;
};

// Errors: kInvalidArgument for strides too large for 62 bits.
Result<Extent> extent_of(const TensorHandle& handle) {
    constexpr std::int64_t kMax = std::int64_t{1} << 56;
    Extent extent;
    std::int64_t row_major = 1;
    for (std::size_t i = handle.shape.size(); i-- > 0;) {
        const std::int64_t num = handle.shape[i];
        const std::int64_t stride = handle.stride[i];
        if (num < 0 || stride < 0 || num > kMax || stride > kMax)
            return bad_handle("a negative or too large extent");
        if (num == 0) {
            extent.elements = 0;
            continue;
        }
        if (num > 1 && stride != row_major) extent.is_contiguous = false;
        if ((extent.elements > 0 && extent.elements > kMax / num) || row_major > kMax / num ||
            (stride > 0 && num - 1 > kMax / stride))
            return bad_handle("an absurd extent");
        extent.elements *= num;
        row_major *= num;
        extent.last += (num - 1) * stride;
        if (extent.last > kMax) return bad_handle("an absurd extent");
    }
    return extent;
}

}  // namespace

Result<TensorHandle> read_handle(const Document& document, const Node& node) {
    // torch's reduce_tensor returns (function, arguments), which a sender may pickle unchanged.
    const auto is_pair_of = [&](Global function) {
        if (node.kind != Kind::kTuple || node.children.size() != 2) return false;
        const Node& label = document.child(node, 0);
        return label.kind == Kind::kGlobal && label.global == function;
    };
    Result<TensorHandle> handle = bad_handle("neither a CUDA nor a shared-memory tensor");
    const bool is_arguments_alone =
        node.kind == Kind::kTuple && node.children.size() == 15;  // vLLM
    if (node.kind == Kind::kRecord && node.global == Global::kRebuildTensor) {
        handle = read_cpu(document, node);
    } else if (is_arguments_alone || (node.kind == Kind::kRecord && node.global == Global::kRebuildCudaTensor)) {
        handle = read_cuda(document, node);
    } else if (is_pair_of(Global::kRebuildTensor)) {
        const Node& arguments = document.child(node, 1);
        handle = arguments.kind == Kind::kTuple && arguments.children.size() == 3
                     ? read_cpu(document, arguments)
                     : bad_handle("rebuild_tensor takes 3 arguments");
    } else if (is_pair_of(Global::kRebuildCudaTensor)) {
        handle = read_cuda(document, document.child(node, 1));
    }
    if (!handle) return handle;
    if (handle->shape.size() != handle->stride.size() ||
        handle->shape.size() > checkpoint::kTensorDimsMax || handle->offset < 0) {
        return bad_handle("shape and stride do not fit together");
    }
    ASSIGN_OR_RETURN([[maybe_unused]] const Extent extent, extent_of(*handle));
    return handle;
}

Result<const TorchStorage*> TorchStorages::host_storage(const TensorHandle& handle) {
    const TorchStorage*& known = by_node_[handle.storage];
    if (known != nullptr) return known;
    ASSIGN_OR_RETURN(std::unique_ptr<TorchStorage> opened, TorchStorage::open(handle.segment));
    TorchStorage& storage = *storages_.emplace_back(std::move(opened));
    RETURN_IF_ERROR(storage.map(handle.segment_bytes));
    known = &storage;
    return known;
}

Result<StorageBytes> TorchStorages::storage(const TensorHandle& handle) {
    if (!handle.cuda) {
        ASSIGN_OR_RETURN(const TorchStorage* const storage, host_storage(handle));
        return StorageBytes{
            .bytes = storage->bytes(), .is_whole = [storage] { return storage->is_whole(); }};
    }
    if (!cuda_) {
        return make_error(
            ErrorCode::kUnsupported,
            "a CUDA handle for a worker that computes on the CPU; send tensors in shared memory "
            "(torch.multiprocessing.set_sharing_strategy('file_system'))"
        );
    }
    ASSIGN_OR_RETURN(
        const std::span<const std::byte> bytes,
        cuda_storages_.open(*handle.cuda, cuda_->device_uuid, cuda_->wait)
    );
    return StorageBytes{.bytes = bytes, .is_on_gpu = true};
}

void TorchStorages::hold(const TensorHandle& handle) {
    if (handle.cuda) return cuda_storages_.hold(*handle.cuda);
    if (by_node_.contains(handle.storage)) return;  // tried before
    // a storage that cannot be opened has no reference to give back
    static_cast<void>(host_storage(handle));
}

Result<TensorBytes> TorchStorages::open(const TensorHandle& handle, checkpoint::StoredDtype dtype) {
    ASSIGN_OR_RETURN(const StorageBytes storage, this->storage(handle));
    ASSIGN_OR_RETURN(const Extent extent, extent_of(handle));
    const std::int64_t size = bytes_of(dtype);
    const std::int64_t room = std::ssize(storage.bytes) / size;
    if (handle.offset > room || (extent.elements > 0 && extent.last >= room - handle.offset)) {
        return bad_handle(fmt::format(
            "elements {} to {} of a storage of {}", handle.offset, handle.offset + extent.last, room
        ));
    }
    const std::byte* first = storage.bytes.data() + handle.offset * size;
    if (extent.is_contiguous || extent.elements == 0) {
        return TensorBytes{
            .dtype = dtype,
            .data = first,
            .is_whole = storage.is_whole,
            .is_on_gpu = storage.is_on_gpu};
    }
    RETURN_IF_ERROR(count_gathered(storage, extent.elements, size));
    const std::span elements(first, static_cast<std::size_t>((extent.last + 1) * size));
    if (storage.is_on_gpu) {
        std::vector<std::byte> on_host(elements.size());
        kernels::copy_and_wait(on_host.data(), first, std::ssize(on_host));
        const std::byte* gathered = gather(handle, extent.elements, size, on_host.data());
        return TensorBytes{.dtype = dtype, .data = gathered};
    }
    const CutGuard guard(elements);
    const std::byte* gathered = gather(handle, extent.elements, size, first);
    RETURN_IF_ERROR(storage.is_whole());
    if (guard.is_cut())
        return make_error(ErrorCode::kDataLoss, "a tensor was truncated while it was read");
    return TensorBytes{.dtype = dtype, .data = gathered};
}

Result<> TorchStorages::count_gathered(
    const StorageBytes& storage, std::int64_t num_elements, std::int64_t element_bytes
) {
    const std::int64_t room = std::ssize(storage.bytes) / element_bytes;
    if (num_elements > room) {  // an expanded view may claim any size
        return bad_handle(fmt::format(
            "a view of {} elements in a storage of {}; send it contiguous", num_elements, room
        ));
    }
    std::int64_t& gathered_bytes = gathered_bytes_[storage.bytes.data()];
    gathered_bytes += num_elements * element_bytes;
    if (gathered_bytes > kGatheredTimesMax * std::ssize(storage.bytes)) {
        return bad_handle(fmt::format(
            "views of a storage of {} bytes take more than {} times as many bytes; send them "
            "contiguous",
            storage.bytes.size(),
            kGatheredTimesMax
        ));
    }
    return Ok{};
}

// Copies element by element: rare, and never large (a transposed view).
const std::byte* TorchStorages::gather(
    const TensorHandle& handle,
    std::int64_t num_elements,
    std::int64_t element_bytes,
    const std::byte* first
) {
    std::vector<std::byte>& gathered = gathered_.emplace_back();
    gathered.resize(static_cast<std::size_t>(num_elements * element_bytes));
    std::vector<std::int64_t> index(handle.shape.size(), 0);
    for (std::int64_t i = 0; i < num_elements; ++i) {
        std::int64_t at = 0;
        for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * handle.stride[d];
        std::memcpy(
            gathered.data() + i * element_bytes,
            first + at * element_bytes,
            static_cast<std::size_t>(element_bytes)
        );
        for (std::size_t d = index.size(); d-- > 0;) {
            if (++index[d] < handle.shape[d]) break;
            index[d] = 0;
        }
    }
    return gathered.data();
}

}  // namespace pitstop::tp_worker
