#include "tp_worker/blocks/gated_delta.h"

#include "base/check.h"
#include "tp_worker/blocks/narrow.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace pitstop::tp_worker {

GatedDelta::GatedDelta(const ModelConfig& config, std::int64_t layer, const RankOf& rank)
    : config_(config.delta), layer_(layer), key_heads_(even_share(config_.num_key_heads, rank)) {
    const std::int64_t group = config_.num_value_heads / config_.num_key_heads;
    num_key_heads_ = key_heads_.num();
    num_value_heads_ = num_key_heads_ * group;
    first_value_head_ = rank.rank * num_value_heads_;
    // Channels are ordered: all queries, then all keys, then all values.
    const AxisShare keys = key_heads_.scaled(config_.key_dim);
    const AxisShare values = key_heads_.scaled(group * config_.value_dim);
    const std::int64_t num_keys = config_.num_key_heads * config_.key_dim;
    const auto add = [&](const AxisShare& share, std::int64_t begin, std::int64_t block) {
        AxisShare::Range range = share.ranges.front();
        range.begin += begin;
        range.index += block * rank.tp;
        channels_.ranges.push_back(range);
    };
    add(keys, 0, 0);
    add(keys, num_keys, 1);
    add(values, 2 * num_keys, 2);
    channels_.num_parts = 3 * rank.tp;
    channels_.cut_unit = 1;
}

void GatedDelta::check_split(
    const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
) {
    if (config.delta.num_key_heads % tp != 0) {
        problems.push_back(
            fmt::format("{} key heads of linear attention", config.delta.num_key_heads)
        );
    }
}

void GatedDelta::declare(const ModelConfig& config, WeightSlots& slots, StatePlan& states) {
    const std::int64_t H = config.hidden;
    const std::int64_t nv = config_.num_value_heads;
    const std::int64_t V = nv * config_.value_dim;
    const std::int64_t C = 2 * config_.num_key_heads * config_.key_dim + V;
    const auto name = [&](std::string_view tail) {
        return fmt::format("model.layers.{}.linear_attn.{}", layer_, tail);
    };
    input_norm_ = slots.add(
        {.name = fmt::format("model.layers.{}.input_layernorm.weight", layer_), .shape = {H}}
    );
    declare_projections(H, slots);
    conv_ = slots.add(
        {.name = name("conv1d.weight"),
         .shape = {C, 1, config_.kernel},
         .split = Split{0, channels_}}
    );
    // A_log stays in fp32: rounding it to bf16 would change its exponential by up to 1 %, at every
    // token.
    a_log_ = slots.add({.name = name("A_log"), .shape = {nv}, .encoding = Encoding::kF32});
    dt_bias_ = slots.add({.name = name("dt_bias"), .shape = {nv}});
    norm_ = slots.add({.name = name("norm.weight"), .shape = {config_.value_dim}});
    const std::int64_t group = nv / config_.num_key_heads;
    out_.parts = {
        {.w = slots.add(
             {.name = name("out_proj.weight"),
              .shape = {H, V},
              .split = Split{1, key_heads_.scaled(group * config_.value_dim)}}
         )}};
    out_.is_summed = true;
    const std::int64_t channels =
        2 * num_key_heads_ * config_.key_dim + num_value_heads_ * config_.value_dim;
    state_id_ = states.add(
        {.num_recurrent = num_value_heads_ * config_.key_dim * config_.value_dim,
         .num_inputs = (config_.kernel - 1) * channels}
    );
}

// Declares the projections' weights, and finds each head's columns in their outputs.
void GatedDelta::declare_projections(std::int64_t hidden, WeightSlots& slots) {
    const std::int64_t dk = config_.key_dim;
    const std::int64_t dv = config_.value_dim;
    const std::int64_t r = config_.num_value_heads / config_.num_key_heads;
    const auto add = [&](std::string_view tail, std::int64_t rows_of_group, AxisShare share) {
        in_.parts.push_back(
            {.w = slots.add(
                 {.name = fmt::format("model.layers.{}.linear_attn.{}.weight", layer_, tail),
                  .shape = {config_.num_key_heads * rows_of_group, hidden},
                  .split = Split{0, std::move(share)}}
             )}
        );
    };
    const auto by_group = [&](std::int64_t rows) { return key_heads_.scaled(rows); };
    if (config_.is_grouped) {
        const std::int64_t group = 2 * dk + 2 * r * dv;
        add("in_proj_qkvz", group, by_group(group));
        add("in_proj_ba", 2 * r, by_group(2 * r));
        const std::int64_t ba = num_key_heads_ * group;
        columns_ = {{
            {0, dk, group, 1},
            {dk, dk, group, 1},
            {2 * dk, dv, group, r},
            {2 * dk + r * dv, dv, group, r},
            {ba, 1, 2 * r, r},
            {ba + r, 1, 2 * r, r},
        }};
        return;
    }
    add("in_proj_qkv", 2 * dk + r * dv, channels_);
    add("in_proj_z", r * dv, by_group(r * dv));
    add("in_proj_b", r, by_group(r));
    add("in_proj_a", r, by_group(r));
    const std::int64_t keys = num_key_heads_ * dk;
    const std::int64_t values = num_value_heads_ * dv;
    columns_ = {{
        {0, dk, dk, 1},
        {keys, dk, dk, 1},
        {2 * keys, dv, r * dv, r},
        {2 * keys + values, dv, r * dv, r},
        {2 * keys + 2 * values, 1, r, r},
        {2 * keys + 2 * values + num_value_heads_, 1, r, r},
    }};
}

void GatedDelta::ask(Scratch& scratch, const Trunk& trunk) {
    const std::int64_t T = scratch.sizes().tokens_max;
    const std::int64_t values = num_value_heads_ * config_.value_dim;
    const std::int64_t all =
        2 * num_key_heads_ * config_.key_dim + 2 * values + 2 * num_value_heads_;
    projected_ = scratch.acts("gated_delta.projected", scratch.product_dtype(), T, all);
    mixed_ = scratch.acts("gated_delta.mixed", scratch.act_dtype(), T, values);
    drafted_ = scratch.acts(
        fmt::format("gated_delta.drafted.{}", layer_),
        scratch.product_dtype(),
        scratch.sizes().state_drafts_max,
        all
    );
    in_.x = trunk.normed;
    const std::int64_t r = config_.num_value_heads / config_.num_key_heads;
    const std::int64_t ba = 2 * num_value_heads_;
    const std::int64_t mixed = all - ba - values;
    const std::vector<std::int64_t> widths =
        config_.is_grouped ? std::vector{all - ba, ba}
                           : std::vector{mixed, values, num_key_heads_ * r, num_key_heads_ * r};
    CHECK(widths.size() == in_.parts.size());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
        in_.parts[i].y = kernels::cols(projected_, begin, widths[i]);
        begin += widths[i];
    }
    out_.x = mixed_;
    out_.parts[0].y = trunk.delta;
}

kernels::HeadColumns GatedDelta::heads_of(const Columns& columns, std::int64_t num_tokens) const {
    return {
        .first = kernels::cols(rows(projected_, 0, num_tokens), columns.begin, columns.num),
        .group_stride = columns.group_stride,
        .group_len = columns.group_len};
}

void GatedDelta::run(const Trunk& trunk, const Pass& pass) const {
    const StepBatch& batch = pass.batch;
    const std::int64_t T = batch.num_tokens();
    trunk.norm(pass, input_norm_);
    trunk.multiply(in_, pass);
    if (!batch.drafted_rows.empty()) {
        trunk.ops->gather_rows(
            {.x = rows(projected_, 0, T),
             .row_index = batch.drafted_rows.data(),
             .y = rows(drafted_, 0, std::ssize(batch.drafted_rows)),
             .stream = trunk.stream}
        );
    }
    recur(trunk, pass);
    trunk.multiply(out_, pass);
}

void GatedDelta::replay(const Trunk& trunk, const Pass& pass) const {
    trunk.ops->gather_rows(
        {.x = drafted_,
         .row_index = pass.batch.drafted_rows.data(),
         .y = rows(projected_, 0, pass.batch.num_tokens()),
         .stream = trunk.stream}
    );
    recur(trunk, pass);
}

// Computes mixed_ from projected_.
void GatedDelta::recur(const Trunk& trunk, const Pass& pass) const {
    const StepBatch& batch = pass.batch;
    const std::int64_t T = batch.num_tokens();
    const std::span<const std::int32_t> stored_ends = batch.states.stored_ends;
    trunk.ops->gated_delta({
        .q = heads_of(columns_[0], T),
        .k = heads_of(columns_[1], T),
        .v = heads_of(columns_[2], T),
        .z = heads_of(columns_[3], T),
        .b = heads_of(columns_[4], T),
        .a = heads_of(columns_[5], T),
        .y = rows(mixed_, 0, T),
        .num_key_heads = num_key_heads_,
        .num_value_heads = num_value_heads_,
        .conv = pass.weights.matrix(conv_),
        .a_log = pass.weights.floats(a_log_) + first_value_head_,
        .dt_bias = pass.weights.vector(dt_bias_) + first_value_head_,
        .norm_w = pass.weights.vector(norm_),
        .norm_eps = trunk.norm_eps,
        .states = state_.recurrent,
        .inputs = state_.inputs,
        .place_bytes = state_.state_bytes,
        .num_rows = std::ssize(batch.kv_lens),
        .q_starts = batch.q_starts.data(),
        .positions = batch.positions.data(),
        .places = batch.states.places.data(),
        .from_places = batch.states.from_places.data(),
        .saved_places = batch.states.saved_places.data(),
        .saved_ends = batch.states.saved_ends.data(),
        .stored_ends = stored_ends.empty() ? nullptr : stored_ends.data(),
        .stream = trunk.stream,
    });
}

}  // namespace pitstop::tp_worker
