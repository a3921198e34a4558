// Says what a stage of weights is for, and what sources hand to it (weight_stage.h).
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "messages/update_orders.h"
#include "messages/weights.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/weights/copy_ledger.h"
#include "tp_worker/weights/pace.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <string_view>

namespace pitstop::tp_worker {

class GpuStaging;
class PinnedPieces;

struct StageArgs {
    messages::UpdateId update{};
    const messages::UpdateSpec& spec;
    Rank rank{};
    const WeightLayout& layout;
    const ModelConfig& config;
    const kernels::Ops& ops;           // the host's
    digest::AddRun add_run = nullptr;  // it has the same level
    GpuStaging* gpu = nullptr;         // the target is in its memory; null: in the host's
    PinnedPieces* pieces = nullptr;    // the live copy is on a GPU, the target in the host's memory
    std::byte* target = nullptr;       // the copy to fill
    const std::byte* live = nullptr;   // the copy that serves; direct: the same
    CopyLedger& target_ledger;         // knows what the target holds
    CopyLedger& live_ledger;           // knows the live copy; direct: the same
    std::int64_t target_bytes = 0;     // the target's memory
    bool takes_shards = false;         // a sender may lay the whole target out itself
    // Makes a sealed memfd the target's memory; empty: a shard that is laid out is copied.
    std::function<Result<>(int fd)> adopt{};
    const Pace& pace;
    int num_threads = 1;  // while no pass runs; while one does, one
    const std::atomic<bool>& is_dropped;
    std::function<void(std::string_view)> at{};  // named places, for fault tests
};

// Describes a tensor that a source has.
struct Incoming {
    checkpoint::TensorSpec spec{};
    TensorBytes bytes{};
};

// Holds the elements of a tensor that change: a sparse source's. Nothing of it is believed yet.
struct SparseTensor {
    checkpoint::TensorSpec spec{};
    const std::byte* indices = nullptr;  // [num] int32, flat in the whole tensor, any alignment
    const std::byte* values = nullptr;   // [num] of spec.dtype, any alignment
    std::int64_t num = 0;
};

}  // namespace pitstop::tp_worker
