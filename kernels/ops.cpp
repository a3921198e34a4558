#include "kernels/ops.h"

#include "base/isa.h"
#include "kernels/cpu/levels.h"

namespace pitstop::kernels {

std::int64_t no_workspace_bytes() { return 0; }

const Ops* reference_ops() {
    static constexpr Ops kReference = {
        .name = "reference",
        .embedding = embedding_ref,
        .rmsnorm = rmsnorm_ref,
        .linear = linear_ref,
        .low_rank = low_rank_ref,
        .route = route_ref,
        .follow_routes = follow_routes_ref,
        .sort_rows_by_expert = sort_rows_by_expert_ref,
        .expert_linear = expert_linear_ref,
        .sum_expert_rows = sum_expert_rows_ref,
        .route_rows = route_rows_ref,
        .count_choices = count_choices_ref,
        .rope = rope_ref,
        .attention = attention_ref,
        .silu_mul = silu_mul_ref,
        .gate_heads = gate_heads_ref,
        .gated_delta = gated_delta_ref,
        .gather_rows = gather_rows_ref,
        .count_nonfinite = count_nonfinite_ref,
        .penalties = penalties_ref,
        .sample = sample_ref,
        .note_draws = note_draws_ref,
        .make_rank_records = make_rank_records_ref,
        .merge_rank_records = merge_rank_records_ref,
        .softmax_stats = softmax_stats_ref,
        .pick_logits = pick_logits_ref,
        .count_before = count_before_ref,
        .top_logits = top_logits_ref,
        .digest = digest_ref,
        .shard_copy = shard_copy_ref,
        .scatter = scatter_ref,
        .linear_workspace_bytes = no_workspace_bytes,
        .attention_workspace_bytes = attention_workspace_bytes,
        .sample_workspace_bytes = sample_workspace_bytes,
        .softmax_stats_workspace_bytes = softmax_stats_workspace_bytes,
    };
    return &kReference;
}

const Ops* cpu_ops(IsaLevel level) {
    CHECK(level <= best_isa());
    switch (level) {
        case IsaLevel::kScalar:
            return &scalar::kOps;
#if defined(__x86_64__)
        case IsaLevel::kAvx2:
            return &avx2::kOps;
        case IsaLevel::kAvx512:
            return &avx512::kOps;
        case IsaLevel::kAvx512Bf16:
            return &avx512bf16::kOps;
#else
        default:
            break;
#endif
    }
    CHECK(false);
}

}  // namespace pitstop::kernels
