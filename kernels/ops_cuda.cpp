#include "kernels/ops.h"

namespace pitstop::kernels {
namespace {

constexpr Ops kFast = {
    .name = "cuda",
    .embedding = embedding_cuda,
    .rmsnorm = rmsnorm_cuda,
    .linear = linear_cuda,
    .linear_silu_mul = linear_silu_mul_cuda,
    .tune_linear = tune_linear_cuda,
    .route = route_cuda,
    .follow_routes = follow_routes_cuda,
    .sort_rows_by_expert = sort_rows_by_expert_cuda,
    .expert_linear = expert_linear_cuda,
    .sum_expert_rows = sum_expert_rows_cuda,
    .route_rows = route_rows_cuda,
    .count_choices = count_choices_cuda,
    .rope = rope_cuda,
    .attention = attention_cuda,
    .silu_mul = silu_mul_cuda,
    .gate_heads = gate_heads_cuda,
    .gated_delta = gated_delta_cuda,
    .gather_rows = gather_rows_cuda,
    .count_nonfinite = count_nonfinite_cuda,
    .penalties = penalties_cuda,
    .sample = sample_cuda,
    .note_draws = note_draws_cuda,
    .make_rank_records = make_rank_records_cuda,
    .merge_rank_records = merge_rank_records_cuda,
    .softmax_stats = softmax_stats_cuda,
    .pick_logits = pick_logits_cuda,
    .count_before = count_before_cuda,
    .top_logits = top_logits_cuda,
    .digest = digest_cuda,
    .shard_copy = shard_copy_cuda,
    .scatter = scatter_cuda,
    .linear_workspace_bytes = [] { return kLinearCudaWorkspaceBytes; },
    .attention_workspace_bytes = attention_cuda_workspace_bytes,
    .sample_workspace_bytes = sample_cuda_workspace_bytes,
    .softmax_stats_workspace_bytes = softmax_stats_workspace_bytes,
};

constexpr Ops make_deterministic() {
    Ops ops = kFast;
    ops.name = "cuda deterministic";
    ops.linear = linear_cuda_deterministic;
    ops.linear_silu_mul = nullptr;
    ops.tune_linear = nullptr;
    ops.expert_linear = expert_linear_cuda_deterministic;
    ops.attention = attention_cuda_deterministic;
    return ops;
}
constexpr Ops kDeterministic = make_deterministic();

}  // namespace

const Ops* cuda_ops() { return &kFast; }
const Ops* cuda_deterministic_ops() { return &kDeterministic; }

}  // namespace pitstop::kernels
