// Reads tensors that came in the call: bytes back to back, elements that change (sparse), or
// handles to a PyTorch peer's memory in SGLang's and vLLM's pickles.
//
// The peer may reuse or free its memory once the call is answered: everything is copied, and the
// references it lent are given back, before this returns; also when it fails.
#pragma once

#include "tp_worker/sources/source.h"

#include <cstddef>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Errors: kInvalidArgument, kMalformed, kPermissionDenied (pickle), kUnsupported, kNotFound (the
// peer's memory is gone).
Result<> deliver_tensors(const SourceArgs& args);
// Takes nothing and gives back what was lent. Returns `why`.
Result<> decline_tensors(const SourceArgs& args, const Error& why);

// Cuts `bytes` into `tensors`, which lie in it back to back and are all of it. Shared with
// broadcasts.
Result<std::vector<Incoming>> cut_flattened(
    std::span<const messages::TensorInfo> tensors, std::span<const std::byte> bytes
);
// Does the same for updates of elements: for each tensor there are its indices, then its values.
Result<std::vector<SparseTensor>> cut_sparse(
    std::span<const messages::TensorInfo> tensors,
    std::span<const std::int64_t> num_updates,
    std::span<const std::byte> bytes
);

}  // namespace pitstop::tp_worker
