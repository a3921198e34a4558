#include "tp_worker/blocks/attention.h"

#include "tp_worker/blocks/narrow.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <span>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kArrivalsBytes =
    kernels::AttentionArgs::kArrivals * static_cast<std::int64_t>(sizeof(std::uint32_t));

// Shares the KV heads evenly if tp divides them; otherwise gives this rank a copy of each KV head
// that its query heads read.
AxisShare share_kv_heads(const ModelConfig& config, const RankOf& rank) {
    if (config.num_kv_heads % rank.tp == 0) return even_share(config.num_kv_heads, rank);
    const std::int64_t group = config.num_q_heads / config.num_kv_heads;
    const std::int64_t num_q_heads = config.num_q_heads / rank.tp;
    const std::int64_t queries_per_copy = std::gcd(group, num_q_heads);
    AxisShare share{.num_parts = config.num_kv_heads, .cut_unit = 1};
    for (std::int64_t q_head = 0; q_head < num_q_heads; q_head += queries_per_copy) {
        const std::int64_t head = (rank.rank * num_q_heads + q_head) / group;
        share.ranges.push_back({.begin = head, .num = 1, .index = head});
    }
    return share;
}

// The angle is rounded to fp32 before its sine is taken, as in transformers and the trainers that
// use it. At position 100,000 the rounding moves an angle by up to 0.004 radians. The engine must
// have the same error. As in transformers, YaRN's factor multiplies the rounded value.
Scratch::FillRow rope_row(
    const RopeConfig& rope, std::int64_t head_dim, double (*function)(double)
) {
    return [frequencies = rope_frequencies(rope, head_dim),
            factor = static_cast<float>(rope.attention_factor),
            function](std::int64_t position, std::span<float> values) {
        for (std::size_t i = 0; i < frequencies.size(); ++i) {
            const float angle = static_cast<float>(position) * frequencies[i];
            values[i] = static_cast<float>(function(static_cast<double>(angle))) * factor;
        }
    };
}

}  // namespace

Attention::Attention(const ModelConfig& config, std::int64_t layer, const RankOf& rank)
    : q_heads_(even_share(config.num_q_heads, rank)),
      kv_heads_(share_kv_heads(config, rank)),
      layer_(layer),
      head_dim_(config.head_dim),
      rope_(config.rope),
      is_gated_(config.gated_attention) {
    const auto index = static_cast<std::size_t>(layer);
    if (index < config.windows.size()) window_ = config.windows[index];
}

void Attention::check_split(
    const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
) {
    if (config.num_q_heads % tp != 0)
        problems.push_back(fmt::format("{} attention heads", config.num_q_heads));
}

void Attention::declare(const ModelConfig& config, WeightSlots& slots, KvPlan& kv) {
    const std::int64_t H = config.hidden;
    const std::int64_t D = head_dim_;
    const std::int64_t QD = config.num_q_heads * D;
    const std::int64_t KD = config.num_kv_heads * D;
    const auto name = [&](std::string_view tail) {
        return fmt::format("model.layers.{}.{}", layer_, tail);
    };
    const auto whole = [&](std::string_view tail, std::int64_t extent) {
        return slots.add({.name = name(tail), .shape = {extent}});
    };
    // Rows of a projection are ordered by head. With gates, the rows of a head's gate follow the
    // rows of the head's queries.
    const AxisShare queries = q_heads_.scaled(is_gated_ ? 2 * D : D);
    const AxisShare keys = kv_heads_.scaled(D);
    const std::int64_t num_queries = is_gated_ ? 2 * QD : QD;
    const auto rows = [&](std::string_view tail, std::int64_t num, const AxisShare& share) {
        return slots.add({.name = name(tail), .shape = {num, H}, .split = Split{0, share}});
    };
    const auto bias = [&](std::string_view tail, std::int64_t num, const AxisShare& share) {
        return slots.add({.name = name(tail), .shape = {num}, .split = Split{0, share}});
    };
    input_norm_ = whole("input_layernorm.weight", H);
    qkv_.parts = {
        {.w = rows("self_attn.q_proj.weight", num_queries, queries)},
        {.w = rows("self_attn.k_proj.weight", KD, keys)},
        {.w = rows("self_attn.v_proj.weight", KD, keys)}};
    o_.parts = {
        {.w = slots.add(
             {.name = name("self_attn.o_proj.weight"),
              .shape = {H, QD},
              .split = Split{1, q_heads_.scaled(D)}}
         )}};
    o_.is_summed = true;
    if (config.qkv_bias) {
        qkv_.parts[0].bias = bias("self_attn.q_proj.bias", num_queries, queries);
        qkv_.parts[1].bias = bias("self_attn.k_proj.bias", KD, keys);
        qkv_.parts[2].bias = bias("self_attn.v_proj.bias", KD, keys);
    }
    if (config.o_bias) o_.parts[0].bias = whole("self_attn.o_proj.bias", H);
    if (config.qk_norm) {
        q_norm_ = whole("self_attn.q_norm.weight", D);
        k_norm_ = whole("self_attn.k_norm.weight", D);
    }
    kv_id_ = kv.add({.num = kv_heads_.num(), .dim = D});
}

void Attention::ask(Scratch& scratch, const Trunk& trunk) {
    const std::int64_t T = scratch.sizes().tokens_max;
    const std::int64_t num_positions = scratch.sizes().num_positions;
    const std::int64_t QD = q_heads_.num() * head_dim_;
    const std::int64_t KD = kv_heads_.num() * head_dim_;
    const std::int64_t num_queries = is_gated_ ? 2 * QD : QD;
    const kernels::ActView qkv =
        scratch.acts("attention.qkv", scratch.product_dtype(), T, num_queries + 2 * KD);
    q_ = kernels::cols(qkv, 0, num_queries);
    k_ = kernels::cols(qkv, num_queries, KD);
    v_ = kernels::cols(qkv, num_queries + KD, KD);
    rotated_ = scratch.acts("attention.rotated", scratch.act_dtype(), T, QD);
    attended_ = scratch.acts("attention.attended", scratch.act_dtype(), T, QD);
    const std::int64_t half = rotary_len(rope_, head_dim_) / 2;
    cos_ = scratch.table(
        "attention.cos",
        num_positions,
        half,
        rope_row(rope_, head_dim_, [](double angle) { return std::cos(angle); })
    );
    sin_ = scratch.table(
        "attention.sin",
        num_positions,
        half,
        rope_row(rope_, head_dim_, [](double angle) { return std::sin(angle); })
    );
    workspace_ = scratch.workspace(
        "attention.workspace",
        scratch.ops().attention_workspace_bytes(
            {.num_tokens = T,
             .num_q_heads = narrow(q_heads_.num()),
             .head_dim = narrow(head_dim_),
             .kv_len_max = narrow(num_positions)}
        )
    );
    arrivals_ = static_cast<std::uint32_t*>(scratch.zeros("attention.arrivals", kArrivalsBytes));
    qkv_.x = trunk.normed;
    qkv_.parts[0].y = q_;
    qkv_.parts[1].y = k_;
    qkv_.parts[2].y = v_;
    o_.x = attended_;
    o_.parts[0].y = trunk.delta;
}

void Attention::run(const Trunk& trunk, const Pass& pass) const {
    const StepBatch& batch = pass.batch;
    const std::int64_t T = batch.num_tokens();
    trunk.norm(pass, input_norm_);
    trunk.multiply(qkv_, pass);
    const kernels::ActView rotated = rows(rotated_, 0, T);
    // In q_, queries and gates alternate, head by head.
    const std::int64_t stride = is_gated_ ? 2 * head_dim_ : head_dim_;
    const std::int64_t to_last_end = q_.cols - (stride - head_dim_);
    trunk.ops->rope({
        .q = kernels::cols(rows(q_, 0, T), 0, to_last_end),
        .q_head_stride = stride,
        .k = rows(k_, 0, T),
        .v = rows(v_, 0, T),
        .q_out = rotated,
        .kv = kv_,
        .slots = batch.kv_slots.data(),
        .positions = batch.positions.data(),
        .cos = cos_,
        .sin = sin_,
        .q_norm = pass.weights.vector(q_norm_),
        .k_norm = pass.weights.vector(k_norm_),
        .norm_offset = trunk.norm_offset,
        .norm_eps = trunk.norm_eps,
        .stream = trunk.stream,
    });
    trunk.ops->attention({
        .q = rotated,
        .out = rows(attended_, 0, T),
        .kv = kv_,
        .num_q_heads = narrow(q_heads_.num()),
        .num_rows = narrow(static_cast<std::int64_t>(batch.kv_lens.size())),
        .q_starts = batch.q_starts.data(),
        .kv_lens = batch.kv_lens.data(),
        .pages = batch.pages.data(),
        .page_starts = batch.page_starts.data(),
        .kv_len_max = batch.kv_len_max,
        .q_len_max = batch.q_len_max,
        .window = window_ ? narrow(*window_) : kernels::kNoWindow,
        .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_))),
        .workspace = workspace_,
        .arrivals = arrivals_,
        .stream = trunk.stream,
    });
    if (is_gated_) {
        trunk.ops->gate_heads({
            .y = rows(attended_, 0, T),
            .head_dim = head_dim_,
            .gate = kernels::cols(rows(q_, 0, T), head_dim_, to_last_end),
            .gate_head_stride = stride,
            .stream = trunk.stream,
        });
    }
    trunk.multiply(o_, pass);
}

}  // namespace pitstop::tp_worker
