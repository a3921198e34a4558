#include "tp_worker/blocks/vocabulary.h"

#include <string>

namespace pitstop::tp_worker {
namespace {

WeightSlot rows_of_vocabulary(
    std::string_view name, const ModelConfig& config, const AxisShare& share
) {
    return {
        .name = std::string(name),
        .shape = {config.vocab_len, config.hidden},
        .split = Split{0, share}};
}

}  // namespace

Embedding::Embedding(const ModelConfig& config, const RankOf& rank)
    : share_(padded_share(config.vocab_len, rank)), vocab_begin_(rank.rank * share_.num()) {}

void Embedding::declare(const ModelConfig& config, WeightSlots& slots) {
    table_ = slots.add(rows_of_vocabulary(kEmbeddingName, config, share_));
}

void Embedding::run(const Trunk& trunk, const Pass& pass) const {
    trunk.ops->embedding({
        .ids = pass.batch.tokens.data(),
        .sampled = pass.batch.sampled,
        .table = pass.weights.matrix(table_),
        .vocab_begin = vocab_begin_,
        .y = rows(trunk.x, 0, pass.batch.num_tokens()),
        .stream = trunk.stream,
    });
}

void Head::declare(const ModelConfig& config, const Embedding& embedding, WeightSlots& slots) {
    vocab_rows_ = embedding.share().num();
    norm_ = slots.add({.name = "model.norm.weight", .shape = {config.hidden}});
    if (config.tied_embeddings) {
        slots.tie(std::string(kHeadName), embedding.table());
        product_.parts = {{.w = embedding.table()}};
        return;
    }
    product_.parts = {{.w = slots.add(rows_of_vocabulary(kHeadName, config, embedding.share()))}};
}

void Head::ask(Scratch& scratch, const ModelConfig& config) {
    const std::int64_t L = scratch.sizes().logit_rows_max;
    x_ = scratch.floats("head.x", L, config.hidden);
    delta_ = scratch.floats("head.delta", L, config.hidden);
    normed_ = scratch.acts("head.normed", scratch.act_dtype(), L, config.hidden);
    part_ = scratch.floats("head.part", L, vocab_rows_);
    if (rank_.tp == 1) {
        whole_ = part_;
    } else if (rank_.rank == 0) {
        whole_ = scratch.floats("head.whole", L, config.vocab_len);
    }
    product_.x = normed_;
    product_.parts[0].y = part_;
}

void Head::run(
    const Trunk& trunk, const BoundWeights& weights, View2<float> x, View2<const float> delta
) const {
    trunk.ops->rmsnorm({
        .x = x,
        .delta = delta,
        .w = weights.vector(norm_),
        .y = rows(normed_, 0, x.rows),
        .w_offset = trunk.norm_offset,
        .eps = trunk.norm_eps,
        .stream = trunk.stream,
    });
    const ProductArgs args(product_, trunk, weights, x.rows);
    trunk.ops->linear(args.args());
}

RowLogits Head::logits_of(std::int64_t num_rows) const {
    RowLogits logits{.part = rows(part_, 0, num_rows)};
    if (rank_.rank == 0) logits.whole = rows(whole_, 0, num_rows);
    return logits;
}

}  // namespace pitstop::tp_worker
