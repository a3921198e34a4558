#include "tp_worker/blocks/dense_mlp.h"

#include <fmt/format.h>

#include <string_view>

namespace pitstop::tp_worker {
namespace {

constexpr Encoding kEncoding = Encoding::kBf16;

}  // namespace

DenseMlp::DenseMlp(const ModelConfig& config, std::int64_t layer, const RankOf& rank)
    : share_(share_in_units(config.ffn, word_len(kEncoding), rank)), layer_(layer) {}

void DenseMlp::check_split(
    const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
) {
    if (config.ffn < tp * word_len(kEncoding))
        problems.push_back(fmt::format("an intermediate size of only {}", config.ffn));
}

void DenseMlp::declare(const ModelConfig& config, WeightSlots& slots) {
    const std::int64_t H = config.hidden;
    const std::int64_t F = config.ffn;
    const auto add = [&](std::string_view tail,
                         std::vector<std::int64_t> shape,
                         std::optional<std::size_t> split_dim) {
        WeightSlot slot{
            .name = fmt::format("model.layers.{}.{}", layer_, tail), .shape = std::move(shape)};
        if (split_dim) slot.split = Split{*split_dim, share_};
        slot.encoding = kEncoding;
        return slots.add(std::move(slot));
    };
    norm_ = add("post_attention_layernorm.weight", {H}, std::nullopt);
    gate_up_.parts = {
        {.w = add("mlp.gate_proj.weight", {F, H}, 0)}, {.w = add("mlp.up_proj.weight", {F, H}, 0)}};
    down_.parts = {{.w = add("mlp.down_proj.weight", {H, F}, 1)}};
    down_.is_summed = true;
    if (!config.mlp_bias) return;
    gate_up_.parts[0].bias = add("mlp.gate_proj.bias", {F}, 0);
    gate_up_.parts[1].bias = add("mlp.up_proj.bias", {F}, 0);
    down_.parts[0].bias = add("mlp.down_proj.bias", {H}, std::nullopt);
}

void DenseMlp::ask(Scratch& scratch, const Trunk& trunk) {
    const std::int64_t T = scratch.sizes().tokens_max;
    const std::int64_t F = share_.num();
    const kernels::ActView gate_up = scratch.acts("mlp.gate_up", scratch.product_dtype(), T, 2 * F);
    gate_ = kernels::cols(gate_up, 0, F);
    up_ = kernels::cols(gate_up, F, F);
    gated_ = scratch.acts("mlp.gated", scratch.act_dtype(), T, F);
    gate_up_.x = trunk.normed;
    gate_up_.parts[0].y = gate_;
    gate_up_.parts[1].y = up_;
    down_.x = gated_;
    down_.parts[0].y = trunk.delta;
}

void DenseMlp::run(const Trunk& trunk, const Pass& pass) const {
    const std::int64_t T = pass.batch.num_tokens();
    trunk.norm(pass, norm_);
    const kernels::ActView gated = rows(gated_, 0, T);
    const ProductArgs gate_up(gate_up_, trunk, pass.weights, T);
    const kernels::Ops& ops = *trunk.ops;
    if (ops.linear_silu_mul == nullptr || !ops.linear_silu_mul(gate_up.args(), gated)) {
        ops.linear(gate_up.args());
        ops.silu_mul(
            {.gate = rows(gate_, 0, T), .up = rows(up_, 0, T), .y = gated, .stream = trunk.stream}
        );
    }
    trunk.multiply(down_, pass);
}

}  // namespace pitstop::tp_worker
