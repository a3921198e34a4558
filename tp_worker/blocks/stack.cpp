#include "tp_worker/blocks/stack.h"

#include "base/check.h"

#include <fmt/ranges.h>

#include <string>

namespace pitstop::tp_worker {

Result<Stack> Stack::make(const ModelConfig& config, Rank rank, int tp) {
    CHECK(tp >= 1 && raw(rank) >= 0 && raw(rank) < tp);
    std::vector<std::string> problems;
    Attention::check_split(config, tp, problems);
    DenseMlp::check_split(config, tp, problems);
    if (tp > kTpMax) problems.push_back(fmt::format("more than {} ranks", kTpMax));
    if (!problems.empty()) {
        return make_error(
            ErrorCode::kUnsupported,
            "this model cannot be split over tp {}: {}",
            tp,
            fmt::join(problems, ", ")
        );
    }
    return Stack(config, {.rank = raw(rank), .tp = tp});
}

Stack::Stack(const ModelConfig& config, const RankOf& rank)
    : config_(config), embedding_(config, rank), head_(rank) {
    trunk_.norm_eps = static_cast<float>(config.norm_eps);
    trunk_.adds_summed_bias = rank.rank == 0;
    embedding_.declare(config, slots_);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        Attention attention(config, layer, rank);
        attention.declare(config, slots_, kv_);
        blocks_.emplace_back(std::move(attention));
        DenseMlp mlp(config, layer, rank);
        mlp.declare(config, slots_);
        blocks_.emplace_back(std::move(mlp));
    }
    // What a block keeps of a token is in x after it: the last block's norm marks it all.
    CHECK(!std::holds_alternative<Attention>(blocks_.back()));
    head_.declare(config, embedding_, slots_);
}

void Stack::ask(Scratch& scratch) {
    trunk_.ask(scratch, config_.hidden);
    for (Block& block : blocks_) std::visit([&](auto& each) { each.ask(scratch, trunk_); }, block);
    head_.ask(scratch, config_);
}

void Stack::attach(const KvPool& pool) {
    for (Block& block : blocks_) {
        if (auto* const attention = std::get_if<Attention>(&block)) attention->attach(pool);
    }
}

Result<> Stack::run(const StepBatch& batch, const BoundWeights& weights, const Sum& sum) const {
    const std::int64_t T = batch.num_tokens();
    Pass pass{.batch = batch, .weights = weights};
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

Result<WeightLayout> layout_of(const ModelConfig& config, Rank rank, int tp, ExtraTensors extra) {
    ASSIGN_OR_RETURN(const Stack stack, Stack::make(config, rank, tp));
    return WeightLayout::make(stack.slots(), extra);
}

}  // namespace pitstop::tp_worker
