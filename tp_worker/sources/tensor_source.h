// Reads tensors that came in the call: bytes back to back, elements that change (sparse), or
// handles to a PyTorch peer's memory in SGLang's and vLLM's pickles.
//
// The peer may reuse or free its memory once the call is answered. So the bytes are copied and the
// references are given back before this returns, even after a failure.
#pragma once

#include "tp_worker/sources/source.h"

#include <cstddef>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Errors: kInvalidArgument, kMalformed, kPermissionDenied (pickle), kUnsupported, kNotFound (the
// peer's memory is gone).
Result<> deliver_tensors(const SourceArgs& args);
// Stages nothing and gives the lent references back. Returns `why`.
Result<> decline_tensors(const SourceArgs& args, const Error& why);

// Cuts `bytes` into `tensors`, which lie back to back and fill `bytes`. Shared with broadcasts.
Result<std::vector<Incoming>> cut_flattened(
    std::span<const messages::TensorInfo> tensors, std::span<const std::byte> bytes
);
// Cuts updates of elements out of `bytes`: each tensor has its indices, then its values.
Result<std::vector<SparseTensor>> cut_sparse(
    std::span<const messages::TensorInfo> tensors,
    std::span<const std::int64_t> num_updates,
    std::span<const std::byte> bytes
);

}  // namespace pitstop::tp_worker
