// The restricted pickle reader for bytes from PyTorch peers (checkpoint-engine, SGLang's and vLLM's
// trainers). Nothing is executed (P7).
//
// The reader knows a fixed list of opcodes (those that CPython's pickler writes for such values in
// protocols 4 and 5; for kSaved, in protocol 2) and, per channel, a fixed list of exact (module,
// name) pairs. A global becomes a label, a constructor's call a record of its arguments. Everything
// else is an error that names the opcode or the global. Every size, depth and count is bounded,
// every read is checked against the message, and nothing recurses. Source: CPython's
// Lib/pickletools.py for the opcodes; torch.multiprocessing.reductions and torch._utils for the
// records. Neither an allow-list by prefix nor a deny-list would be enough: CVE-2026-15969.
#pragma once

#include "base/result.h"
#include "pickle/value.h"

#include <cstddef>
#include <span>

namespace pitstop::pickle {

// The channel that a pickle came from decides which globals it may name.
enum class Channel {
    kHandle,   // checkpoint-engine's first message: one tensor handle
    kBucket,   // checkpoint-engine's bucket metadata, and its replies (None, an exception)
    kTensors,  // serialized tensors in an update request: handles, flattened buckets, records
    kNcclId,   // a communicator's unique id
    kSaved,    // the data.pkl of a file of torch.save
};

inline constexpr std::size_t kMessageBytesMax = std::size_t{64} << 20;
inline constexpr std::size_t kOpcodesMax = std::size_t{16} << 20;
inline constexpr std::size_t kNodesMax = std::size_t{8} << 20;  // values, and memo entries
inline constexpr std::size_t kChildrenMax = 2 * kNodesMax;      // of all values
inline constexpr std::uint32_t kDepthMax = 64;
inline constexpr std::uint64_t kLogicalNodesMax = std::uint64_t{8} << 20;  // when walked as a tree
inline constexpr std::size_t kStringBytesMax = std::size_t{64} << 10;
inline constexpr std::size_t kBytesBytesMax = std::size_t{16} << 20;

// Errors: kMalformed, kTooLarge, kPermissionDenied (an opcode or a global that is not allowed).
Result<Document> read(std::span<const std::byte> message, Channel channel);

}  // namespace pitstop::pickle
