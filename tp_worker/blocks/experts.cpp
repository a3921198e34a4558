#include "tp_worker/blocks/experts.h"

#include "base/check.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

namespace pitstop::tp_worker {
namespace {

static_assert(kExpertsMax == kernels::RouteArgs::kExpertsMax);
static_assert(kChosenMax == kernels::RouteArgs::kChosenMax);

// A family's names for the parts of a block of experts.
struct Names {
    std::string_view block{};
    std::string_view gate{};
    std::string_view up{};
    std::string_view down{};
};
Names names_of(ExpertNames names) {
    switch (names) {
        case ExpertNames::kQwen:
            return {.block = "mlp", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};
        case ExpertNames::kMixtral:
            return {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
    }
    CHECK(false);
}

std::string prefix_of(const ExpertsConfig& config, std::int64_t layer) {
    return fmt::format("model.layers.{}.{}.", layer, names_of(config.names).block);
}

}  // namespace

Experts::Experts(const ModelConfig& config, std::int64_t layer, const RankOf& rank)
    : config_(config.experts),
      hidden_(config.hidden),
      layer_(layer),
      experts_(elements_of_group(config_.num, rank)),
      share_(share_in_units(config_.ffn, word_len(GatedMlp::kEncoding), rank.in_group())) {
    if (config_.shared_ffn == 0) return;
    shared_.emplace(
        GatedMlp::Args{
            .prefix = prefix_of(config_, layer) + "shared_expert.",
            .hidden = hidden_,
            .ffn = config_.shared_ffn},
        rank
    );
}

void Experts::check_split(
    const ModelConfig& config, const RankOf& ranks, std::vector<std::string>& problems
) {
    const ExpertsConfig& experts = config.experts;
    if (experts.num < ranks.ep)
        problems.push_back(fmt::format("only {} experts for --ep {}", experts.num, ranks.ep));
    if (!GatedMlp::splits(experts.ffn, ranks.tp / ranks.ep))
        problems.push_back(fmt::format("experts' intermediate size of only {}", experts.ffn));
    if (experts.shared_ffn > 0 && !GatedMlp::splits(experts.shared_ffn, ranks.tp)) {
        problems.push_back(
            fmt::format("a shared expert's intermediate size of only {}", experts.shared_ffn)
        );
    }
}

void Experts::declare(const ModelConfig& config, WeightSlots& slots) {
    const std::string prefix = prefix_of(config_, layer_);
    const Names names = names_of(config_.names);
    const std::int64_t H = config.hidden;
    const std::int64_t I = config_.ffn;
    const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
        return slots.add({.name = std::move(name), .shape = std::move(shape)});
    };
    norm_ = add(fmt::format("model.layers.{}.post_attention_layernorm.weight", layer_), {H});
    router_.parts = {{.w = add(prefix + "gate.weight", {config_.num, H})}};
    const auto add_split = [&](std::int64_t e,
                               std::string_view tail,
                               std::vector<std::int64_t> shape,
                               std::size_t split_dim) {
        const bool is_here = e >= experts_.begin && e < experts_.begin + experts_.num;
        return slots.add(
            {.name = fmt::format("{}experts.{}.{}.weight", prefix, e, tail),
             .shape = std::move(shape),
             .split = Split{split_dim, is_here ? share_ : share_.of_no_holder()},
             .encoding = GatedMlp::kEncoding}
        );
    };
    // With square matrices, a pack's shape would not show whether its matrices are transposed.
    const bool shows_form = I != H && 2 * I != H;
    WeightSlots::Pack gates_ups{
        .name = fmt::format("model.layers.{}.mlp.experts.gate_up_proj", layer_),
        .shape = {config_.num, 2 * I, H},
        .may_be_transposed = shows_form};
    WeightSlots::Pack downs{
        .name = fmt::format("model.layers.{}.mlp.experts.down_proj", layer_),
        .shape = {config_.num, H, I},
        .may_be_transposed = shows_form};
    for (std::int64_t e = 0; e < config_.num; ++e) {
        const Expert expert{
            .gate = add_split(e, names.gate, {I, H}, 0),
            .up = add_split(e, names.up, {I, H}, 0),
            .down = add_split(e, names.down, {H, I}, 1)};
        CHECK(raw(expert.down) - raw(expert.gate) == ExpertAdapters::kWeightsPerExpert - 1);
        all_.push_back(expert);
        gates_ups.slots.insert(gates_ups.slots.end(), {expert.gate, expert.up});
        downs.slots.push_back(expert.down);
    }
    // Mixtral's packs have these names, too: transformers 5 packs all families' tensors alike.
    slots.pack(std::move(gates_ups));
    slots.pack(std::move(downs));
    if (config_.names == ExpertNames::kMixtral) {
        slots.pack(
            {.name = fmt::format("model.layers.{}.mlp.gate.weight", layer_),
             .shape = {config_.num, H},
             .slots = {router_.parts.front().w}}
        );
    }
    if (!shared_) return;
    shared_->declare(slots);
    shared_gate_.parts = {{.w = add(prefix + "shared_expert_gate.weight", {1, H})}};
}

std::vector<WeightId> Experts::weights_of_experts() const {
    std::vector<WeightId> weights;
    for (const Expert& expert : all_)
        weights.insert(weights.end(), {expert.gate, expert.up, expert.down});
    return weights;
}

Choices Choices::ask(Scratch& scratch, const ModelConfig& config) {
    Choices choices{
        .num_layers = config.num_layers,
        .tokens_max = scratch.sizes().tokens_max,
        .per_token = config.experts.per_token,
        .num_experts = config.experts.num};
    const std::int64_t num = choices.num_layers * choices.tokens_max * choices.per_token;
    void* const place =
        scratch.zeros("experts.choices", num * static_cast<std::int64_t>(sizeof(std::int32_t)));
    choices.experts = {static_cast<std::int32_t*>(place), static_cast<std::size_t>(num)};
    const std::int64_t num_counts = choices.num_layers * choices.num_experts;
    if (num_counts <= kLoadCountsMax) {
        void* const counts = scratch.zeros(
            "experts.load", num_counts * static_cast<std::int64_t>(sizeof(std::int64_t))
        );
        choices.load = {static_cast<std::int64_t*>(counts), static_cast<std::size_t>(num_counts)};
    }
    return choices;
}

View2<std::int32_t> Choices::of_layer(std::int64_t layer) const {
    std::int32_t* place = experts.data();
    if (place != nullptr) place += layer * tokens_max * per_token;  // null before Scratch::place()
    return view2(place, tokens_max, per_token);
}

void Experts::ask(Scratch& scratch, const Trunk& trunk, const Choices& choices) {
    const std::int64_t T = scratch.sizes().tokens_max;
    const std::int64_t k = config_.per_token;
    const std::int64_t I = share_.num();
    logits_ = scratch.floats("experts.logits", T, config_.num);
    router_.x = trunk.normed;
    router_.parts[0].y = logits_;
    chosen_ = choices.of_layer(layer_);
    row_of_ = view2(scratch.array<std::int32_t>("experts.row_of", T * k).data(), T, k);
    weights_ = scratch.floats("experts.weights", T, k);
    begins_ = scratch.array<std::int32_t>("experts.begins", experts_.num + 1);
    token_of_ = scratch.array<std::int32_t>("experts.token_of", T * k);
    sorted_ = scratch.acts("experts.sorted", scratch.act_dtype(), T * k, hidden_);
    const kernels::ActView gate_up =
        scratch.acts("experts.gate_up", scratch.product_dtype(), T * k, 2 * I);
    gate_ = kernels::cols(gate_up, 0, I);
    up_ = kernels::cols(gate_up, I, I);
    gated_ = scratch.acts("experts.gated", scratch.act_dtype(), T * k, I);
    rows_ = scratch.floats("experts.rows", T * k, hidden_);
    adapters_.ask(scratch, T * k);
    if (!shared_) return;
    shared_rows_ = scratch.floats("experts.shared", T, hidden_);
    shared_logits_ = scratch.floats("experts.shared_gate", T, 1);
    shared_->ask(scratch, trunk, shared_rows_);
    shared_gate_.x = trunk.normed;
    shared_gate_.parts[0].y = shared_logits_;
}

std::vector<const Product*> Experts::products() const {
    std::vector<const Product*> all{&router_};
    if (!shared_) return all;
    for (const Product* product : shared_->products()) all.push_back(product);
    all.push_back(&shared_gate_);
    return all;
}

std::vector<WeightId> Experts::weights_of_routers() const {
    std::vector<WeightId> weights;
    for (const Product* product : {&router_, &shared_gate_}) {
        for (const Product::Part& part : product->parts) weights.push_back(part.w);
    }
    return weights;
}

void Experts::run(const Trunk& trunk, const Pass& pass) const {
    const std::int64_t T = pass.batch.num_tokens();
    trunk.norm(pass, norm_);
    trunk.multiply(router_, pass);
    const kernels::RouteArgs route{
        .logits = rows(logits_, 0, T),
        .experts = rows(chosen_, 0, T),
        .weights = rows(weights_, 0, T),
        .norm = config_.norm_chosen ? kernels::RouterNorm::kChosen : kernels::RouterNorm::kAll,
        .rounds_weights = trunk.rounds_expert_weights,
        .stream = trunk.stream};
    trunk.ops->route(route);
    if (!pass.batch.brought_rows.empty()) follow(trunk, pass, route);
    sort(trunk, pass);
    multiply(trunk, pass);
    kernels::SumExpertRowsArgs sum{
        .rows = rows_,
        .row_of = rows(row_of_, 0, T),
        .weights = rows(weights_, 0, T),
        .y = rows(trunk.delta, 0, T),
        .stream = trunk.stream};
    if (shared_) {
        shared_->run(trunk, pass);
        trunk.multiply(shared_gate_, pass);
        sum.shared = rows(shared_rows_, 0, T);
        sum.gate = rows(shared_logits_, 0, T);
    }
    trunk.ops->sum_expert_rows(sum);
}

void Experts::follow(const Trunk& trunk, const Pass& pass, const kernels::RouteArgs& route) const {
    const std::int64_t id_bytes = config_.num <= 256 ? 1 : 2;
    trunk.ops->follow_routes({
        .route = route,
        .given = pass.batch.brought.data() + layer_ * config_.per_token * id_bytes,
        .row_bytes = pass.batch.brought_row_bytes,
        .id_bytes = id_bytes,
        .token_rows = pass.batch.brought_rows.data(),
        .num_rows = std::ssize(pass.batch.brought_rows),
    });
}

void Experts::sort(const Trunk& trunk, const Pass& pass) const {
    const std::int64_t T = pass.batch.num_tokens();
    trunk.ops->sort_rows_by_expert({
        .chosen = rows(chosen_, 0, T),
        .first_expert = static_cast<std::int32_t>(experts_.begin),
        .num_experts = static_cast<std::int32_t>(experts_.num),
        .begins = begins_.data(),
        .token_of = token_of_.data(),
        .row_of = rows(row_of_, 0, T),
        .stream = trunk.stream,
    });
    trunk.ops->gather_rows({
        .x = rows(trunk.normed, 0, T),
        .row_index = token_of_.data(),
        .y = rows(sorted_, 0, T * config_.per_token),
        .stream = trunk.stream,
    });
}

// The distance from one expert's weights to the next one's. The layout places weights in the order
// of declaration, at multiples of one alignment, so all strides are equal.
std::int64_t Experts::stride(const BoundWeights& weights) const {
    const std::int64_t to_last =
        weights.matrix(last().down).data - weights.matrix(first().down).data;
    const std::int64_t num = experts_.num - 1;
    if (num == 0) return 0;
    CHECK(to_last % num == 0);
    CHECK(weights.matrix(last().gate).data - weights.matrix(first().gate).data == to_last);
    return to_last / num;
}

void Experts::multiply(const Trunk& trunk, const Pass& pass) const {
    const std::int64_t num_rows = pass.batch.num_tokens() * config_.per_token;
    const std::int64_t stride = this->stride(pass.weights);
    const auto part = [&](WeightId w, kernels::ActView y) {
        return kernels::ExpertLinearPart{
            .w = pass.weights.matrix(w), .expert_stride = stride, .y = rows(y, 0, num_rows)};
    };
    const auto run = [&](kernels::ConstActView x,
                         std::span<const kernels::ExpertLinearPart> parts) {
        trunk.ops->expert_linear({
            .x = x,
            .parts = parts,
            .begins = begins_.data(),
            .num_experts = static_cast<std::int32_t>(experts_.num),
            .stream = trunk.stream,
        });
    };
    const ExpertAdapters::Rows sorted{
        .begins = begins_, .token_of = token_of_.first(static_cast<std::size_t>(num_rows))};
    const auto adapted = [&](WeightId w, kernels::ActView y) {
        return ExpertAdapters::Part{.w = w, .y = rows(y, 0, num_rows)};
    };
    adapters_.find(trunk, pass, sorted);
    const kernels::ActView x = rows(sorted_, 0, num_rows);
    run(x, std::array{part(first().gate, gate_), part(first().up, up_)});
    adapters_.add(
        trunk, pass, sorted, x, std::array{adapted(first().gate, gate_), adapted(first().up, up_)}
    );
    trunk.ops->silu_mul({
        .gate = rows(gate_, 0, num_rows),
        .up = rows(up_, 0, num_rows),
        .y = rows(gated_, 0, num_rows),
        .stream = trunk.stream,
    });
    const kernels::ActView gated = rows(gated_, 0, num_rows);
    run(gated, std::array{part(first().down, rows_)});
    adapters_.add(trunk, pass, sorted, gated, std::array{adapted(first().down, rows_)});
}

}  // namespace pitstop::tp_worker
