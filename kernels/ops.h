// All ops of one device in one table. Each family's header is its contract. Callers reach an
// implementation only through the table.
//
//   const Ops* ops = cpu_ops(level);
//   ops->rmsnorm({.x = x, .w = w, .y = y, .eps = eps, .stream = stream_of(pool)});
//
// Thread: an op may be called from any thread, one call per stream at a time. No op allocates.
// Pointers in Args are memory of the device, unless a header says host.
#pragma once

#include "kernels/attention.h"
#include "kernels/digest.h"
#include "kernels/draws.h"
#include "kernels/embedding.h"
#include "kernels/expert_linear.h"
#include "kernels/expert_rows.h"
#include "kernels/gate_heads.h"
#include "kernels/gated_delta.h"
#include "kernels/gather_rows.h"
#include "kernels/linear.h"
#include "kernels/logprobs.h"
#include "kernels/low_rank.h"
#include "kernels/nonfinite.h"
#include "kernels/penalties.h"
#include "kernels/rank_records.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/route_rows.h"
#include "kernels/router.h"
#include "kernels/sampling.h"
#include "kernels/scatter.h"
#include "kernels/shard_copy.h"
#include "kernels/silu_mul.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace pitstop {
enum class IsaLevel : std::uint8_t;  // base/isa.h; forward-declared, since that header includes fmt
}  // namespace pitstop

namespace pitstop::kernels {

struct Ops {
    std::string_view name{};  // "reference", "cpu avx512bf16", "cuda": for logs and benchmarks

    void (*embedding)(const EmbeddingArgs&) = nullptr;
    void (*rmsnorm)(const RmsNormArgs&) = nullptr;
    void (*linear)(const LinearArgs&) = nullptr;
    // Null if no fused version exists: then call linear and silu_mul (linear.h).
    bool (*linear_silu_mul)(const LinearArgs&, const ActView& gated) = nullptr;
    // Null if linear has no algorithms to choose from; see tune_linear_cuda (linear.h).
    int (*tune_linear)(std::span<const LinearArgs> rotation) = nullptr;
    // Null on a GPU: use low_rank_rows_cuda() there.
    void (*low_rank)(const LowRankArgs&) = nullptr;
    void (*route)(const RouteArgs&) = nullptr;
    void (*follow_routes)(const FollowRoutesArgs&) = nullptr;
    void (*sort_rows_by_expert)(const SortRowsByExpertArgs&) = nullptr;
    void (*expert_linear)(const ExpertLinearArgs&) = nullptr;
    void (*sum_expert_rows)(const SumExpertRowsArgs&) = nullptr;
    void (*route_rows)(const RouteRowsArgs&) = nullptr;
    void (*count_choices)(const CountChoicesArgs&) = nullptr;
    void (*rope)(const RopeArgs&) = nullptr;
    void (*attention)(const AttentionArgs&) = nullptr;
    void (*silu_mul)(const SiluMulArgs&) = nullptr;
    void (*gate_heads)(const GateHeadsArgs&) = nullptr;
    void (*gated_delta)(const GatedDeltaArgs&) = nullptr;
    void (*gather_rows)(const GatherRowsArgs&) = nullptr;
    void (*count_nonfinite)(const CountNonfiniteArgs&) = nullptr;
    void (*penalties)(const PenaltyArgs&) = nullptr;
    void (*sample)(const SampleArgs&) = nullptr;
    void (*note_draws)(const NoteDrawsArgs&) = nullptr;
    void (*make_rank_records)(const MakeRankRecordsArgs&) = nullptr;
    void (*merge_rank_records)(const MergeRankRecordsArgs&) = nullptr;
    void (*softmax_stats)(const SoftmaxStatsArgs&) = nullptr;
    void (*pick_logits)(const PickLogitsArgs&) = nullptr;
    void (*count_before)(const CountBeforeArgs&) = nullptr;
    void (*top_logits)(const TopLogitsArgs&) = nullptr;
    void (*digest)(const DigestArgs&) = nullptr;
    void (*shard_copy)(const ShardCopyArgs&) = nullptr;
    void (*scatter)(const ScatterArgs&) = nullptr;

    std::int64_t (*linear_workspace_bytes)() = nullptr;
    std::int64_t (*attention_workspace_bytes)(const AttentionShape&) = nullptr;
    std::int64_t (*sample_workspace_bytes)(std::int64_t num_rows, std::int64_t vocab_len) = nullptr;
    std::int64_t (*softmax_stats_workspace_bytes
    )(std::int64_t num_rows, std::int64_t vocab_len) = nullptr;
};

// The definitions of all ops, for tests: plain loops, sums in double, one thread.
[[nodiscard]] const Ops* reference_ops();

// REQUIRES: level <= best_isa().
[[nodiscard]] const Ops* cpu_ops(IsaLevel level);

// Null in a build without CUDA. REQUIRES: open_cuda_device() (cuda_device.h) before any op is
// called.
[[nodiscard]] const Ops* cuda_ops();
// GPU ops for which the bits of a row do not depend on the batch (P6). On the CPU they never do.
[[nodiscard]] const Ops* cuda_deterministic_ops();

}  // namespace pitstop::kernels
