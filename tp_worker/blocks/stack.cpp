#include "tp_worker/blocks/stack.h"

#include "base/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <type_traits>

namespace pitstop::tp_worker {

Result<Stack> Stack::make(const ModelConfig& config, const RankOf& rank) {
    const std::int64_t tp = rank.tp;
    CHECK(tp >= 1 && rank.rank >= 0 && rank.rank < tp && rank.ep >= 1 && tp % rank.ep == 0);
    CHECK(std::ssize(config.layers) == config.num_layers);
    std::vector<std::string> problems;
    std::vector<BlockKind> kinds;
    for (const LayerBlocks& layer : config.layers) {
        for (const BlockKind kind : layer) {
            if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
        }
    }
    for (const BlockKind kind : kinds) {
        switch (kind) {
            case BlockKind::kAttention:
                Attention::check_split(config, tp, problems);
                break;
            case BlockKind::kGatedDelta:
                GatedDelta::check_split(config, tp, problems);
                break;
            case BlockKind::kDenseMlp:
                DenseMlp::check_split(config, tp, problems);
                break;
            case BlockKind::kExperts:
                Experts::check_split(config, rank, problems);
                break;
        }
    }
    const bool has_experts = std::ranges::find(kinds, BlockKind::kExperts) != kinds.end();
    if (rank.ep > 1 && !has_experts)
        problems.push_back(fmt::format("no experts for --ep {}", rank.ep));
    if (tp > kTpMax) problems.push_back(fmt::format("more than {} ranks", kTpMax));
    if (!problems.empty()) {
        return make_error(
            ErrorCode::kUnsupported,
            "this model cannot be split over tp {}: {}",
            tp,
            fmt::join(problems, ", ")
        );
    }
    return Stack(config, rank);
}

Stack::Stack(const ModelConfig& config, const RankOf& rank)
    : config_(config), embedding_(config, rank), head_(rank) {
    trunk_.norm_eps = static_cast<float>(config.norm_eps);
    trunk_.norm_offset = config.zero_centred_norms ? 1.f : 0.f;
    trunk_.adds_summed_bias = rank.rank == 0;
    embedding_.declare(config, slots_);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        for (const BlockKind kind : config.layers[static_cast<std::size_t>(layer)])
            blocks_.push_back(make_block(kind, layer, rank));
    }
    // The last block must keep nothing of a request. Then the marks of its norm cover all blocks
    // that keep something: non-finite values that a block keeps also reach x.
    CHECK(!std::holds_alternative<Attention>(blocks_.back()));
    CHECK(!std::holds_alternative<GatedDelta>(blocks_.back()));
    head_.declare(config, embedding_, slots_);
}

// Makes a block, which declares its weights and pages.
Block Stack::make_block(BlockKind kind, std::int64_t layer, const RankOf& rank) {
    if (kind == BlockKind::kDenseMlp) {
        DenseMlp mlp(config_, layer, rank);
        mlp.declare(config_, slots_);
        return mlp;
    }
    if (kind == BlockKind::kExperts) {
        Experts experts(config_, layer, rank);
        experts.declare(config_, slots_);
        return experts;
    }
    if (kind == BlockKind::kGatedDelta) {
        GatedDelta delta(config_, layer, rank);
        delta.declare(config_, slots_, states_);
        return delta;
    }
    CHECK(kind == BlockKind::kAttention);
    Attention attention(config_, layer, rank);
    attention.declare(config_, slots_, kv_);
    return attention;
}

bool Stack::has_experts() const {
    return std::ranges::any_of(blocks_, [](const Block& block) {
        return std::holds_alternative<Experts>(block);
    });
}

void Stack::ask(Scratch& scratch) {
    trunk_.ask(scratch, config_.hidden);
    if (has_experts()) choices_ = Choices::ask(scratch, config_);
    const auto ask = [&](auto& block) {
        if constexpr (std::is_same_v<decltype(block), Experts&>) {
            block.ask(scratch, trunk_, *choices_);
        } else {
            block.ask(scratch, trunk_);
        }
    };
    for (Block& block : blocks_) std::visit(ask, block);
    head_.ask(scratch, config_);
}

void Stack::attach(const KvPool& pool, const StatePool& states) {
    for (Block& block : blocks_) {
        if (auto* const attention = std::get_if<Attention>(&block)) attention->attach(pool);
        if (auto* const delta = std::get_if<GatedDelta>(&block)) delta->attach(states);
    }
}

Result<> Stack::run(const StepBatch& batch, const BoundWeights& weights, const Sum& sum) const {
    const std::int64_t T = batch.num_tokens();
    std::vector<kernels::LowRankSegment> segments;
    segments.reserve(batch.adapted.size() * kernels::LinearArgs::kPartsMax);
    Pass pass{.batch = batch, .weights = weights, .segments = &segments};
    embedding_.run(trunk_, pass);
    RETURN_IF_ERROR(sum(rows(trunk_.x, 0, T)));
    for (const Block& block : blocks_) {
        if (&block == &blocks_.back() && !batch.marks.empty()) pass.marks = batch.marks.data();
        std::visit([&](const auto& each) { each.run(trunk_, pass); }, block);
        RETURN_IF_ERROR(sum(rows(trunk_.delta, 0, T)));
        pass.lacks_delta = true;
    }
    return Ok{};
}

void Stack::replay(const StepBatch& batch, const BoundWeights& weights) const {
    const Pass pass{.batch = batch, .weights = weights};
    for (const Block& block : blocks_) {
        if (const auto* const delta = std::get_if<GatedDelta>(&block)) delta->replay(trunk_, pass);
    }
}

std::vector<const Product*> Stack::products() const {
    std::vector<const Product*> all;
    for (const Block& block : blocks_) {
        std::visit(
            [&](const auto& each) {
                for (const Product* product : each.products()) all.push_back(product);
            },
            block
        );
    }
    return all;
}

std::vector<AdaptableWeight> Stack::adaptable() const {
    std::vector<AdaptableWeight> weights;
    for (const Product* product : products()) {
        for (const Product::Part& part : product->parts) weights.push_back({part.w});
    }
    for (const Block& block : blocks_) {
        const auto* const experts = std::get_if<Experts>(&block);
        if (experts == nullptr) continue;
        for (const WeightId router : experts->weights_of_routers())
            std::ranges::find(weights, router, &AdaptableWeight::weight)->is_of_router = true;
        for (const WeightId weight : experts->weights_of_experts())
            weights.push_back({.weight = weight, .is_of_expert = true});
    }
    return weights;
}

}  // namespace pitstop::tp_worker
