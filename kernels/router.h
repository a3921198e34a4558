// Chooses the experts of each token by a router's logits:
//   p = softmax(logits[t, :])                              over all E experts
//   experts[t, :] = the k experts of the largest logits, largest first, of equals the lower first
//   weights[t, j] = p[experts[t, j]]                       kAll
//                 = p[experts[t, j]] / sum_j p[...]        kChosen
// and rounds each weight to bf16 on request.
//
//   logits   [T, E]  fp32
//   experts  [T, k]  int32, k different ones of [0, E)
//   weights  [T, k]  fp32
//
// A row with a NaN or a +infinity among its logits, or with only -infinity, has weights of NaN, and
// valid experts: a value that is not finite never becomes a healthy number. Sums run in fp32, in an
// order that only E sets. The choice is by the logits, whose order softmax keeps: no rounding of
// exp makes ties.
//
// Source: transformers 5.24, Qwen3MoeTopKRouter (kAll, or kChosen with norm_topk_prob),
// MixtralTopKRouter (kChosen); both use torch.topk, which guarantees no order of equals.
#pragma once

#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

enum class RouterNorm : std::uint8_t { kAll, kChosen };

struct RouteArgs {
    static constexpr std::int64_t kExpertsMax = 1024;
    static constexpr std::int64_t kChosenMax = 32;

    View2<const float> logits{};    // [T, E], 1 <= E <= kExpertsMax
    View2<std::int32_t> experts{};  // [T, k], 1 <= k <= min(E, kChosenMax)
    View2<float> weights{};         // [T, k]
    RouterNorm norm = RouterNorm::kAll;
    bool rounds_weights = false;  // to bf16
    Stream stream{};
};

void check(const RouteArgs& args);
void route_ref(const RouteArgs& args);
void route_cuda(const RouteArgs& args);

}  // namespace pitstop::kernels
