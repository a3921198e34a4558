// The source of an update's bytes; a part of the messages in weights.h.
//
//   disk         every worker reads a checkpoint directory
//   ipc          every worker connects to a socket of the sender, which passes buckets of shared
//                memory (checkpoint-engine's protocol, or pitstop's own: push.h)
//   tensors      in the call: the bytes, or handles to shared memory as PyTorch pickles them
//   distributed  broadcasts in a group that was joined before (init_group)
//   buckets      none yet: a session, whose update_bucket calls each have a source
#pragma once

#include "messages/fields.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::messages {

inline constexpr std::size_t kHandlesMax = 4096;
inline constexpr std::size_t kHandleBytesMax = 512;
inline constexpr std::size_t kGroupNameBytesMax = 256;

enum class SourceKind : std::uint8_t { kDisk, kIpc, kTensors, kDistributed, kBuckets };
template <>
struct EnumNames<SourceKind> {
    static constexpr std::array<std::string_view, 5> kNames{
        "disk", "ipc", "tensors", "distributed", "buckets"};
};

// The layout of the tensors that are sent.
enum class TensorFormat : std::uint8_t {
    kEach,       // distributed: one broadcast per tensor
    kFlattened,  // without gaps, in the order of `tensors`
    kSparse,     // per tensor: flat int32 indices, then the same number of values
    kPickle,     // tensors: SGLang's serialized payload, per rank
    kVllmIpc,    // tensors: vLLM's list of handles by device
};
template <>
struct EnumNames<TensorFormat> {
    static constexpr std::array<std::string_view, 5> kNames{
        "each", "flattened", "sparse", "pickle", "vllm_ipc"};
};

// A tensor, as its sender declares it.
struct TensorInfo {
    std::string name{};
    std::string dtype{};
    std::vector<std::int64_t> shape{};
    std::string digest{};

    template <class F>
    void fields(F&& f) {
        f("name", name, "checkpoint name");
        f("dtype",
          dtype,
          "BF16, F16 or F32, as safetensors has it (in a source also torch's bfloat16, float16, "
          "float32); of the resident tensor: BF16");
        f("shape", shape, "of the whole tensor");
        f("digest", digest, "32 hex digits: lane 0, lane 1; empty: not declared");
    }
    friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct RankPayload {
    RawArray<std::uint8_t> data{};

    template <class F>
    void fields(F&& f) {
        f("data", data, "bytes in the source's format");
    }
    friend bool operator==(const RankPayload&, const RankPayload&) = default;
};

struct WeightSource {
    SourceKind kind = SourceKind::kDisk;
    std::string path{};
    std::map<std::string, std::string> handles{};
    std::int64_t stall_ms = 60'000;
    TensorFormat format = TensorFormat::kFlattened;
    std::vector<TensorInfo> tensors{};
    std::vector<std::int64_t> num_updates{};
    std::vector<RankPayload> payloads{};
    std::string group{};
    std::int64_t packed_bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("kind", kind, "disk, ipc, tensors, distributed, or buckets");
        f("path", path, "disk: a checkpoint directory, with the checks of the start");
        f("handles",
          handles,
          "ipc: the sender's ZeroMQ endpoint (ipc:// only) by device uuid, as `status` gives it");
        f("stall_ms",
          stall_ms,
          "ipc, distributed: milliseconds of silence after which the sender counts as lost");
        f("format",
          format,
          "tensors, distributed: each, flattened, sparse; tensors: also pickle, vllm_ipc");
        f("tensors", tensors, "tensors, distributed: the sent tensors, in order; not with pickle");
        f("num_updates", num_updates, "sparse: the number of changed elements of each tensor");
        f("payloads", payloads, "tensors: one for all ranks, or one per rank");
        f("group", group, "distributed: the group's name");
        f("packed_bytes",
          packed_bytes,
          "distributed, flattened: a broadcast ends after the tensor that makes it longer than "
          "this; 0: one broadcast for all");
    }
    friend bool operator==(const WeightSource&, const WeightSource&) = default;
};

// Returns what is wrong with the source, or nothing.
std::optional<std::string> invalid(const WeightSource& source);

}  // namespace pitstop::messages
