#include "tp_worker/blocks/expert_adapters.h"

#include "base/check.h"
#include "kernels/expert_tables.h"

#include <array>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// The weight of the expert that is `expert` after the one of `first`.
WeightId weight_of(WeightId first, std::int64_t expert) {
    return static_cast<WeightId>(
        raw(first) + static_cast<std::int32_t>(expert) * ExpertAdapters::kWeightsPerExpert
    );
}

}  // namespace

void ExpertAdapters::ask(Scratch& scratch, std::int64_t rows_max) {
    const std::int64_t rank_max = scratch.sizes().adapter_rank_max;
    if (rank_max == 0) return;
    low_ranks_ = scratch.floats("experts.low_ranks", rows_max, kPartsMax * rank_max);
    if (scratch.is_cuda())
        tables_ = scratch.array<const kernels::LowRankPair*>("experts.tables", rows_max);
}

void ExpertAdapters::find(const Trunk& trunk, const Pass& pass, const Rows& sorted) const {
    if (pass.batch.adapter_tables.empty()) return;
    kernels::expert_tables_cuda({
        .tables = pass.batch.adapter_tables.data(),
        .begins = sorted.begins.data(),
        .token_of = sorted.token_of.data(),
        .num_experts = static_cast<std::int32_t>(sorted.begins.size() - 1),
        .num_rows = std::ssize(sorted.token_of),
        .pairs_per_expert = kWeightsPerExpert,
        .to = tables_.data(),
        .stream = trunk.stream,
    });
}

void ExpertAdapters::add(
    const Trunk& trunk,
    const Pass& pass,
    const Rows& sorted,
    const kernels::ConstActView& x,
    std::span<const Part> parts
) const {
    CHECK(parts.size() <= kPartsMax);
    if (!pass.batch.adapted.empty()) {
        std::vector<kernels::LowRankSegment>& segments = *pass.segments;
        segments.clear();
        add_segments(pass, sorted, parts, segments);
        if (!segments.empty())
            trunk.ops->low_rank({.x = x, .segments = segments, .stream = trunk.stream});
    }
    if (pass.batch.adapter_tables.empty()) return;
    std::array<kernels::LowRankRowsArgs::Part, kPartsMax> pairs{};
    for (std::size_t i = 0; i < parts.size(); ++i)
        pairs[i] = {.pair = raw(parts[i].w), .y = parts[i].y};
    kernels::low_rank_rows_cuda({
        .x = x,
        .parts = std::span(pairs).first(parts.size()),
        .tables = tables_.data(),
        .rank_max = rank_max(),
        .h = rows(low_ranks_, 0, x.rows),
        .stream = trunk.stream,
    });
}

// An expert's rows ascend by token, so those of consecutive tokens are consecutive, too.
void ExpertAdapters::add_segments(
    const Pass& pass,
    const Rows& sorted,
    std::span<const Part> parts,
    std::vector<kernels::LowRankSegment>& segments
) const {
    const std::span<const std::int32_t> begins = sorted.begins;
    for (std::size_t e = 0; e + 1 < begins.size(); ++e) {
        std::int64_t row = begins[e];
        const std::int64_t end = begins[e + 1];
        const auto pass_tokens_before = [&](std::int64_t token) {
            while (row < end && sorted.token_of[static_cast<std::size_t>(row)] < token) ++row;
        };
        for (const AdaptedTokens& tokens : pass.batch.adapted) {
            pass_tokens_before(tokens.begin);
            const std::int64_t begin = row;
            pass_tokens_before(tokens.begin + tokens.num);
            if (row == begin) continue;
            for (std::size_t i = 0; i < parts.size(); ++i) {
                const WeightId weight = weight_of(parts[i].w, static_cast<std::int64_t>(e));
                const BoundAdapter::Pair* const pair = tokens.adapter->find(weight);
                if (pair == nullptr) continue;
                const std::int64_t rank = pair->a.rows;
                CHECK(rank <= rank_max());
                View2<float> h = rows(low_ranks_, begin, row - begin);
                h.data += static_cast<std::int64_t>(i) * rank_max();
                h.cols = rank;
                segments.push_back({
                    .row_begin = begin,
                    .num_rows = row - begin,
                    .a = pair->a,
                    .b = pair->b,
                    .scale = pair->scale,
                    .y = parts[i].y,
                    .h = h,
                });
            }
        }
    }
}

}  // namespace pitstop::tp_worker
