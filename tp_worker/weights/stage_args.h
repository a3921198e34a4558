// The arguments of a stage of weights, and the types that sources pass to it (weight_stage.h).
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
#include <optional>
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
    digest::AddRun add_run = nullptr;  // for the instruction level of `ops`
    GpuStaging* gpu = nullptr;         // set if the target is in GPU memory; null: in host memory
    // set if the rank computes on a GPU and the target is in host memory; then the live copy is on
    // the GPU, unless it is the target
    PinnedPieces* pieces = nullptr;
    std::byte* target = nullptr;      // the copy to fill
    const std::byte* live = nullptr;  // the serving copy; in a direct update: the target
    CopyLedger& target_ledger;        // records what the target contains
    // records what the live copy contains; in a direct update: the target's ledger
    CopyLedger& live_ledger;
    std::int64_t target_bytes = 0;  // the size of the target's memory
    bool takes_shards = false;      // a sender may write the whole target in its layout
    // Makes a sealed memfd the target's memory; empty: shards in the target's layout are copied.
    std::function<Result<>(int fd)> adopt{};
    const Pace& pace;
    int num_threads = 1;  // used while no pass runs; during passes only one
    const std::atomic<bool>& is_dropped;
    std::function<void(std::string_view)> at{};  // called at named places, for fault tests
};

// Some rows of a whole tensor, all columns.
struct TensorRows {
    std::int64_t begin = 0;
    std::int64_t num = 0;
};

// A tensor that a source delivers.
struct Incoming {
    checkpoint::TensorSpec spec{};
    TensorBytes bytes{};
    // If set, only these rows arrive, and `bytes` begin with them. Further rows follow in later
    // calls (weight_stage.h).
    std::optional<TensorRows> rows{};
};

// The changed elements of a tensor, from a sparse source, still unchecked.
struct SparseTensor {
    checkpoint::TensorSpec spec{};
    const std::byte* indices = nullptr;  // [num] int32, flat in the whole tensor, any alignment
    const std::byte* values = nullptr;   // [num] of spec.dtype, any alignment
    std::int64_t num = 0;
};

}  // namespace pitstop::tp_worker
