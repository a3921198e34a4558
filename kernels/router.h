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
// MixtralTopKRouter (kChosen); both use torch.topk, which does not define the order of equals.
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

// Replaces the choice of tokens whose experts are given, after route():
//   experts[token_rows[i], :] = given[i, :], in the order given
//   weights[token_rows[i], :] = of those experts, by the formulas above
// Given experts that are also route()'s choice, in the same order, get the same bits as route()
// computes.
//
//   given       [N, k]  ids of id_bytes each, little-endian; row_bytes from a row to the next;
//                       k different ones of [0, E)
//   token_rows  [N]     int32, different ones of [0, T)
//   experts, weights    as route() left them
struct FollowRoutesArgs {
    RouteArgs route{};
    const std::uint8_t* given = nullptr;
    std::int64_t row_bytes = 0;
    std::int64_t id_bytes = 1;  // or 2
    const std::int32_t* token_rows = nullptr;
    std::int64_t num_rows = 0;  // N
};

void check(const FollowRoutesArgs& args);
void follow_routes_ref(const FollowRoutesArgs& args);
void follow_routes_cuda(const FollowRoutesArgs& args);

}  // namespace pitstop::kernels
