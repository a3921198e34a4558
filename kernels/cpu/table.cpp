// This level's table.
#include "kernels/cpu/families.h"
#include "kernels/cpu/levels.h"

namespace pitstop::kernels::PITSTOP_ISA {

#define PITSTOP_STRING_INNER(name) #name
#define PITSTOP_STRING(name) PITSTOP_STRING_INNER(name)

constinit const Ops kOps = {
    .name = "cpu " PITSTOP_STRING(PITSTOP_ISA),
    .embedding = embedding,
    .rmsnorm = rmsnorm,
    .linear = linear,
    .low_rank = low_rank,
    .route = route_cpu,
    .follow_routes = follow_routes_cpu,
    .sort_rows_by_expert = sort_rows_by_expert_ref,  // exact; a load and a store per pair
    .expert_linear = expert_linear,
    .sum_expert_rows = sum_expert_rows,
    .route_rows = route_rows_ref,  // exact; a load and a store per id
    .count_choices = count_choices_ref,
    .rope = rope,
    .attention = attention,
    .silu_mul = silu_mul,
    .gate_heads = gate_heads,
    .gated_delta = gated_delta,
    .gather_rows = gather_rows_cpu,
    .count_nonfinite = count_nonfinite_cpu,
    .penalties = penalties_cpu,
    .sample = sample,
    .note_draws = note_draws_ref,                  // exact; a few loads and stores
    .make_rank_records = make_rank_records_ref,    // one logarithm per row
    .merge_rank_records = merge_rank_records_ref,  // one exponential per row and rank
    .softmax_stats = softmax_stats,
    .pick_logits = pick_logits_ref,  // exact; a few loads
    .count_before = count_before,
    .top_logits = top_logits,
    .digest = digest,
    .shard_copy = shard_copy,
    .scatter = scatter_ref,  // exact; a load and a store
    .linear_workspace_bytes = no_workspace_bytes,
    .attention_workspace_bytes = attention_workspace_bytes,
    .sample_workspace_bytes = sample_workspace_bytes,
    .softmax_stats_workspace_bytes = softmax_stats_workspace_bytes,
};

}  // namespace pitstop::kernels::PITSTOP_ISA
