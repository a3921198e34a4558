#include "tp_worker/blocks/trunk.h"

#include "base/check.h"
#include "kernels/low_rank_rows.h"

#include <array>

namespace pitstop::tp_worker {

ProductArgs::ProductArgs(
    const Product& product, const Trunk& trunk, const BoundWeights& weights, std::int64_t num_rows
) {
    const std::size_t num = product.parts.size();
    CHECK(num >= 1 && num <= parts_.size());
    const bool has_bias = !product.is_summed || trunk.adds_summed_bias;
    for (std::size_t i = 0; i < num; ++i) {
        const Product::Part& part = product.parts[i];
        parts_[i] = {
            .w = weights.matrix(part.w),
            .bias = has_bias ? weights.vector(part.bias) : nullptr,
            .y = rows(part.y, 0, num_rows)};
    }
    args_ = {
        .x = rows(product.x, 0, num_rows),
        .parts = std::span(parts_).first(num),
        .workspace = trunk.products,
        .stream = trunk.stream};
}

void Trunk::ask(Scratch& scratch, std::int64_t hidden) {
    const std::int64_t T = scratch.sizes().tokens_max;
    ops = &scratch.ops();
    x = scratch.floats("x", T, hidden);
    delta = scratch.floats("delta", T, hidden);
    normed = scratch.acts("normed", scratch.act_dtype(), T, hidden);
    products = scratch.workspace("products", ops->linear_workspace_bytes());
    constexpr std::int64_t kParts = kernels::LinearArgs::kPartsMax;
    const std::int64_t rank_max = scratch.sizes().adapter_rank_max;
    if (rank_max > 0) low_ranks = scratch.floats("low_ranks", T, kParts * rank_max);
}

void Trunk::norm(const Pass& pass, WeightId w) const {
    const std::int64_t T = pass.batch.num_tokens();
    ops->rmsnorm({
        .x = rows(x, 0, T),
        .delta = pass.lacks_delta ? View2<const float>(rows(delta, 0, T)) : View2<const float>{},
        .w = pass.weights.vector(w),
        .y = rows(normed, 0, T),
        .w_offset = norm_offset,
        .eps = norm_eps,
        .marks = pass.marks,
        .stream = stream,
    });
}

void Trunk::multiply(const Product& product, const Pass& pass) const {
    const ProductArgs args(product, *this, pass.weights, pass.batch.num_tokens());
    ops->linear(args.args());
    if (!pass.batch.adapted.empty()) adapt(product, pass);
    if (!pass.batch.adapter_tables.empty()) adapt_rows(product, pass);
}

// Runs on a GPU. A table in memory names each row's adapter, so a CUDA graph may contain the call.
void Trunk::adapt_rows(const Product& product, const Pass& pass) const {
    const std::int64_t T = pass.batch.num_tokens();
    std::array<kernels::LowRankRowsArgs::Part, kernels::LowRankRowsArgs::kPartsMax> parts{};
    const std::size_t num = product.parts.size();
    for (std::size_t i = 0; i < num; ++i) {
        const Product::Part& part = product.parts[i];
        parts[i] = {.pair = raw(part.w), .y = rows(part.y, 0, T)};
    }
    kernels::low_rank_rows_cuda({
        .x = rows(product.x, 0, T),
        .parts = std::span(parts).first(num),
        .tables = pass.batch.adapter_tables.data(),
        .rank_max = adapter_rank_max(),
        .h = rows(low_ranks, 0, T),
        .stream = stream,
    });
}

// Each pair of an adapter and a weight is a segment. The parts of a product are adjacent
// in the scratch.
void Trunk::adapt(const Product& product, const Pass& pass) const {
    std::vector<kernels::LowRankSegment>& segments = *pass.segments;
    segments.clear();
    const std::int64_t T = pass.batch.num_tokens();
    const std::int64_t rank_max = adapter_rank_max();
    for (const AdaptedTokens& tokens : pass.batch.adapted) {
        for (std::size_t i = 0; i < product.parts.size(); ++i) {
            const BoundAdapter::Pair* const pair = tokens.adapter->find(product.parts[i].w);
            if (pair == nullptr) continue;
            const std::int64_t rank = pair->a.rows;
            CHECK(rank <= rank_max);
            View2<float> h = rows(low_ranks, tokens.begin, tokens.num);
            h.data += static_cast<std::int64_t>(i) * rank_max;
            h.cols = rank;
            segments.push_back({
                .row_begin = tokens.begin,
                .num_rows = tokens.num,
                .a = pair->a,
                .b = pair->b,
                .scale = pair->scale,
                .y = rows(product.parts[i].y, 0, T),
                .h = h,
            });
        }
    }
    if (segments.empty()) return;
    ops->low_rank({.x = rows(product.x, 0, T), .segments = segments, .stream = stream});
}

}  // namespace pitstop::tp_worker
