// The fast CPU ops of the level being compiled; their contracts are in kernels/<family>.h.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace pitstop::kernels::PITSTOP_ISA {

void embedding(const EmbeddingArgs& args);
void rmsnorm(const RmsNormArgs& args);
void linear(const LinearArgs& args);
void low_rank(const LowRankArgs& args);
void expert_linear(const ExpertLinearArgs& args);
void sum_expert_rows(const SumExpertRowsArgs& args);
void rope(const RopeArgs& args);
void attention(const AttentionArgs& args);
void silu_mul(const SiluMulArgs& args);
void gate_heads(const GateHeadsArgs& args);
void gated_delta(const GatedDeltaArgs& args);
void sample(const SampleArgs& args);
void softmax_stats(const SoftmaxStatsArgs& args);
void count_before(const CountBeforeArgs& args);
void top_logits(const TopLogitsArgs& args);
void shard_copy(const ShardCopyArgs& args);

}  // namespace pitstop::kernels::PITSTOP_ISA
