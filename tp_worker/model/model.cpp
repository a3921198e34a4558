#include "tp_worker/model/model.h"

#include "kernels/linear_tuning.h"
#include "tp_worker/model/narrow.h"
#include "tp_worker/model/step_padding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace pitstop::tp_worker {

Result<> Model::sum_over_ranks(View2<float> x) {
    CHECK(x.stride == x.cols);
    return communicator_->all_reduce_sum({x.data, static_cast<std::size_t>(x.rows * x.cols)});
}

std::int64_t transfer_bytes(const StepBatch& batch) {
    const auto bytes = [](auto array) {
        return Transfers::bytes_of(static_cast<std::int64_t>(array.size_bytes()));
    };
    if (batch.num_padded > 0) return bytes(batch.update);  // it brings the rows
    return bytes(batch.update) + bytes(batch.tokens) + bytes(batch.positions) +
           bytes(batch.kv_slots) + bytes(batch.q_starts) + bytes(batch.kv_lens) +
           bytes(batch.page_starts) + bytes(batch.pages) + bytes(batch.token_rows) +
           bytes(batch.marks);
}

Result<StepBatch> Model::place(const StepBatch& batch) {
    StepBatch placed = batch;
    if (updates_) {
        ASSIGN_OR_RETURN(placed.update, updates_->make(batch));
        placed.page_starts = updates_->page_starts();
        placed.pages = {};
    }
    if (transfer_bytes(placed) > transfers_->bytes_left()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a step with {} bytes of tokens and pages; this worker has room for {}",
            transfer_bytes(placed),
            transfers_->bytes_left()
        );
    }
    const auto move = [&](auto& array) { array = {transfers_->in(array), array.size()}; };
    // A graph keeps where they are: what is placed before each has the size that its shape says,
    // and the update, whose size differs from step to step, comes last.
    if (placed.num_padded > 0) {
        take_rows(placed);
    } else {
        // These come first, before all that goes up.
        placed.marks = {transfers_->out(placed.marks), placed.marks.size()};
        move(placed.tokens);
        move(placed.positions);
        move(placed.kv_slots);
        move(placed.q_starts);
        move(placed.kv_lens);
        move(placed.page_starts);
        move(placed.pages);
        move(placed.token_rows);
    }
    move(placed.update);
    placed.slots = {};
    if (updates_) placed.pages = buffers_.tables;
    return placed;
}

// A padded step's rows are where its update leaves them.
void Model::take_rows(StepBatch& placed) const {
    CHECK(placed.num_padded <= kPaddedRowsMax);
    const auto R = static_cast<std::size_t>(placed.num_padded);
    const kernels::StepRowsArgs& rows = buffers_.rows;
    placed.tokens = {rows.tokens, R};
    placed.positions = {rows.positions, R};
    placed.kv_slots = {rows.kv_slots, R};
    placed.q_starts = {buffers_.q_starts, R + 1};
    placed.kv_lens = {rows.kv_lens, R};
    placed.page_starts = {rows.page_starts, R};
}

kernels::LinearArgs Model::product(
    Product which,
    const ModelWeights& weights,
    std::size_t layer_index,
    std::int64_t num_rows,
    Parts& parts
) const {
    const std::int64_t T = num_rows;
    const LayerWeights& layer = weights.layers[layer_index];
    // A bias of a sum over the ranks is added once, by the rank that comes first in it.
    const bool is_first = raw(communicator_->rank()) == 0;
    kernels::LinearArgs args{.workspace = buffers_.linear, .stream = stream_};
    std::size_t num = 1;
    switch (which) {
        case Product::kQkv:
            args.x = rows(buffers_.normed, 0, T);
            parts[0] = {.w = layer.q, .bias = layer.q_bias, .y = rows(buffers_.q, 0, T)};
            parts[1] = {.w = layer.k, .bias = layer.k_bias, .y = rows(buffers_.k, 0, T)};
            parts[2] = {.w = layer.v, .bias = layer.v_bias, .y = rows(buffers_.v, 0, T)};
            num = 3;
            break;
        case Product::kO:
            args.x = rows(buffers_.attended, 0, T);
            parts[0] = {
                .w = layer.o,
                .bias = is_first ? layer.o_bias : nullptr,
                .y = rows(buffers_.delta, 0, T)};
            break;
        case Product::kGateUp:
            args.x = rows(buffers_.normed, 0, T);
            parts[0] = {.w = layer.gate, .bias = layer.gate_bias, .y = rows(buffers_.gate, 0, T)};
            parts[1] = {.w = layer.up, .bias = layer.up_bias, .y = rows(buffers_.up, 0, T)};
            num = 2;
            break;
        case Product::kDown:
            args.x = rows(buffers_.gated, 0, T);
            parts[0] = {
                .w = layer.down,
                .bias = is_first ? layer.down_bias : nullptr,
                .y = rows(buffers_.delta, 0, T)};
            break;
        case Product::kHead:
            args.x = rows(buffers_.head_normed, 0, T);
            parts[0] = {.w = weights.head, .y = rows(buffers_.head_part, 0, T)};
            break;
    }
    args.parts = std::span(parts).first(num);
    return args;
}

int Model::tune(Product which, const ModelWeights& weights, std::int64_t num_rows) {
    constexpr std::size_t kRotationMax = 8;  // layers, whose weights together are beyond the caches
    const std::size_t num =
        which == Product::kHead ? 1 : std::min(kRotationMax, weights.layers.size());
    std::array<Parts, kRotationMax> parts{};
    std::vector<kernels::LinearArgs> rotation;
    for (std::size_t i = 0; i < num; ++i)
        rotation.push_back(product(which, weights, i, num_rows, parts[i]));
    return ops_->tune_linear(rotation);
}

int Model::tune(const ModelWeights& weights) {
    if (ops_->tune_linear == nullptr) return 0;
    int num_timed = 0;
    const auto tune_up_to = [&](Product which, std::int64_t rows_max) {
        for (std::int64_t M = 1; M <= rows_max; M = kernels::gemm_bucket(M) + 1)
            num_timed += tune(which, weights, std::min(kernels::gemm_bucket(M), rows_max));
    };
    for (const Product which : {Product::kQkv, Product::kO, Product::kGateUp, Product::kDown})
        tune_up_to(which, sizes_.tokens_max);
    tune_up_to(Product::kHead, sizes_.logit_rows_max);
    return num_timed;
}

// Goes from normed to delta, by this rank's heads.
void Model::attend(const ModelWeights& weights, std::size_t index, const StepBatch& there) {
    const LayerWeights& layer = weights.layers[index];
    const auto T = static_cast<std::int64_t>(there.tokens.size());
    const kernels::ActView q = rows(buffers_.q, 0, T);
    const kernels::ActView k = rows(buffers_.k, 0, T);
    const kernels::ActView v = rows(buffers_.v, 0, T);
    const kernels::ActView rotated = rows(buffers_.rotated, 0, T);
    const kernels::ActView attended = rows(buffers_.attended, 0, T);
    Parts parts;
    ops_->linear(product(Product::kQkv, weights, index, T, parts));

    kernels::KvCache kv = layer_kv_;
    kv.data = kv_ + static_cast<std::int64_t>(index) * kv_bytes(layer_kv_);
    ops_->rope({
        .q = q,
        .k = k,
        .v = v,
        .q_out = rotated,
        .kv = kv,
        .slots = there.kv_slots.data(),
        .positions = there.positions.data(),
        .cos = buffers_.cos,
        .sin = buffers_.sin,
        .q_norm = layer.q_norm,
        .k_norm = layer.k_norm,
        .norm_eps = static_cast<float>(config_->norm_eps),
        .stream = stream_,
    });
    const std::optional<std::int64_t> window = config_->windows[index];
    ops_->attention({
        .q = rotated,
        .out = attended,
        .kv = kv,
        .num_q_heads = narrow(shard_.num_q_heads),
        .num_rows = narrow(static_cast<std::int64_t>(there.kv_lens.size())),
        .q_starts = there.q_starts.data(),
        .kv_lens = there.kv_lens.data(),
        .pages = there.pages.data(),
        .page_starts = there.page_starts.data(),
        .kv_len_max = there.kv_len_max,
        .q_len_max = there.q_len_max,
        .window = window ? narrow(*window) : kernels::kNoWindow,
        .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_->head_dim))),
        .workspace = buffers_.attention,
        .arrivals = buffers_.arrivals,
        .stream = stream_,
    });
    ops_->linear(product(Product::kO, weights, index, T, parts));
}

// Goes from normed to delta, by this rank's columns of the MLP.
void Model::feed_forward(const ModelWeights& weights, std::size_t index, std::int64_t num_tokens) {
    const std::int64_t T = num_tokens;
    const kernels::ActView gate = rows(buffers_.gate, 0, T);
    const kernels::ActView up = rows(buffers_.up, 0, T);
    const kernels::ActView gated = rows(buffers_.gated, 0, T);
    Parts parts;
    const kernels::LinearArgs gate_up = product(Product::kGateUp, weights, index, T, parts);
    if (ops_->linear_silu_mul == nullptr || !ops_->linear_silu_mul(gate_up, gated)) {
        ops_->linear(gate_up);
        ops_->silu_mul({.gate = gate, .up = up, .y = gated, .stream = stream_});
    }
    ops_->linear(product(Product::kDown, weights, index, T, parts));
}

Result<> Model::forward(const StepBatch& placed, const ModelWeights& weights) {
    CHECK(static_cast<std::int64_t>(placed.tokens.size()) <= sizes_.tokens_max);
    is_summed_ = false;
    return run_layers(placed, weights);
}

Result<> Model::run_padded(const StepBatch& placed, const ModelWeights& weights) {
    const auto T = static_cast<std::int64_t>(placed.tokens.size());
    const bool has_prompts = !placed.token_rows.empty();
    const auto L = has_prompts ? static_cast<std::int64_t>(placed.token_rows.size()) : T;
    CHECK(T <= sizes_.tokens_max && L <= sizes_.logit_rows_max);
    // It is kept for a graph: what it has of the step is where arrays are and how many rows they
    // have.
    const auto enqueue = [this, placed, T, L, has_prompts, &weights]() -> Result<> {
        RETURN_IF_ERROR(run_layers(placed, weights));
        if (has_prompts) {
            run_head_of(placed.token_rows.data(), L, /*is_summed=*/false, weights);
        } else {
            run_head(rows(buffers_.x, 0, T), rows(buffers_.delta, 0, T), weights);
        }
        return Ok{};
    };
    const StepGraphs::Shape shape{
        .weights = weights.embedding.data,
        .inputs = has_prompts ? static_cast<const void*>(placed.tokens.data())
                              : static_cast<const void*>(placed.update.data()),
        .num_tokens = T,
        .num_rows = static_cast<std::int64_t>(placed.kv_lens.size()),
        .num_logit_rows = L};
    RETURN_IF_ERROR(has_graphs_ ? graphs_.run(shape, stream_, enqueue) : enqueue());
    is_summed_ = !has_prompts;
    return Ok{};
}

Result<> Model::run_layers(const StepBatch& there, const ModelWeights& weights) {
    const auto T = static_cast<std::int64_t>(there.tokens.size());
    const View2<float> x = rows(buffers_.x, 0, T);
    const View2<float> delta = rows(buffers_.delta, 0, T);
    const kernels::ActView normed = rows(buffers_.normed, 0, T);
    const auto eps = static_cast<float>(config_->norm_eps);

    if (!there.update.empty()) {
        kernels::StepRowsArgs update = buffers_.rows;
        update.update = there.update.data();
        update.num_rows = narrow(there.num_padded);
        update.stream = stream_;
        kernels::step_rows_cuda(update);
    }
    ops_->embedding({
        .ids = there.tokens.data(),
        .sampled = there.sampled,
        .table = weights.embedding,
        .vocab_begin = shard_.vocab_begin,
        .y = x,
        .stream = stream_,
    });
    RETURN_IF_ERROR(sum_over_ranks(x));
    View2<const float> last_delta{};  // x still lacks this
    std::uint8_t* const marks = there.marks.empty() ? nullptr : there.marks.data();
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
        const LayerWeights& layer = weights.layers[i];
        ops_->rmsnorm(
            {.x = x,
             .delta = last_delta,
             .w = layer.input_norm,
             .y = normed,
             .eps = eps,
             .stream = stream_}
        );
        attend(weights, i, there);
        RETURN_IF_ERROR(sum_over_ranks(delta));
        ops_->rmsnorm(
            {.x = x,
             .delta = delta,
             .w = layer.post_norm,
             .y = normed,
             .eps = eps,
             .marks = i + 1 == weights.layers.size() ? marks : nullptr,
             .stream = stream_}
        );
        feed_forward(weights, i, T);
        RETURN_IF_ERROR(sum_over_ranks(delta));
        last_delta = delta;
    }
    return Ok{};  // run_head() adds the last delta, to the rows that are asked for
}

void Model::logits(
    const std::int32_t* token_rows, std::int64_t num_rows, const ModelWeights& weights
) {
    CHECK(num_rows <= sizes_.logit_rows_max);
    run_head_of(token_rows, num_rows, is_summed_, weights);
}

// Gathers the rows first.
void Model::run_head_of(
    const std::int32_t* token_rows,
    std::int64_t num_rows,
    bool is_summed,
    const ModelWeights& weights
) {
    const View2<float> x = rows(buffers_.head_x, 0, num_rows);
    ops_->gather_rows({.x = buffers_.x, .row_index = token_rows, .y = x, .stream = stream_});
    if (is_summed) return run_head(x, {}, weights);
    const View2<float> delta = rows(buffers_.head_delta, 0, num_rows);
    ops_->gather_rows({.x = buffers_.delta, .row_index = token_rows, .y = delta, .stream = stream_}
    );
    return run_head(x, delta, weights);
}

RowLogits Model::logits_of(std::int64_t num_rows) const {
    RowLogits logits{.part = rows(buffers_.head_part, 0, num_rows)};
    if (raw(communicator_->rank()) == 0) logits.whole = rows(buffers_.head_whole, 0, num_rows);
    return logits;
}

void Model::run_head(View2<float> x, View2<const float> delta, const ModelWeights& weights) {
    const std::int64_t L = x.rows;
    ops_->rmsnorm({
        .x = x,
        .delta = delta,
        .w = weights.final_norm,
        .y = rows(buffers_.head_normed, 0, L),
        .eps = static_cast<float>(config_->norm_eps),
        .stream = stream_,
    });
    Parts parts;
    ops_->linear(product(Product::kHead, weights, 0, L, parts));
}

}  // namespace pitstop::tp_worker
