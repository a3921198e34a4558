#include "tp_worker/blocks/gated_mlp.h"

#include <string_view>
#include <utility>

namespace pitstop::tp_worker {

GatedMlp::GatedMlp(Args args, const RankOf& rank)
    : args_(std::move(args)), share_(share_in_units(args_.ffn, word_len(kEncoding), rank)) {}

bool GatedMlp::splits(std::int64_t ffn, std::int64_t tp) { return ffn >= tp * word_len(kEncoding); }

void GatedMlp::declare(WeightSlots& slots) {
    const std::int64_t H = args_.hidden;
    const std::int64_t F = args_.ffn;
    const auto add = [&](std::string_view tail,
                         std::vector<std::int64_t> shape,
                         std::optional<std::size_t> split_dim) {
        WeightSlot slot{
            .name = args_.prefix + std::string(tail),
            .shape = std::move(shape),
            .encoding = kEncoding};
        if (split_dim) slot.split = Split{*split_dim, share_};
        return slots.add(std::move(slot));
    };
    gate_up_.parts = {
        {.w = add("gate_proj.weight", {F, H}, 0)}, {.w = add("up_proj.weight", {F, H}, 0)}};
    down_.parts = {{.w = add("down_proj.weight", {H, F}, 1)}};
    down_.is_summed = true;
    if (!args_.has_bias) return;
    gate_up_.parts[0].bias = add("gate_proj.bias", {F}, 0);
    gate_up_.parts[1].bias = add("up_proj.bias", {F}, 0);
    down_.parts[0].bias = add("down_proj.bias", {H}, std::nullopt);
}

void GatedMlp::ask(Scratch& scratch, const Trunk& trunk, View2<float> y) {
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
    down_.parts[0].y = y;
}

void GatedMlp::run(const Trunk& trunk, const Pass& pass) const {
    const std::int64_t T = pass.batch.num_tokens();
    const kernels::ActView gated = rows(gated_, 0, T);
    const kernels::Ops& ops = *trunk.ops;
    const auto fused = [&] {
        if (ops.linear_silu_mul == nullptr || pass.batch.has_adapters()) return false;
        const ProductArgs gate_up(gate_up_, trunk, pass.weights, T);
        return ops.linear_silu_mul(gate_up.args(), gated);
    };
    if (!fused()) {
        trunk.multiply(gate_up_, pass);
        ops.silu_mul(
            {.gate = rows(gate_, 0, T), .up = rows(up_, 0, T), .y = gated, .stream = trunk.stream}
        );
    }
    trunk.multiply(down_, pass);
}

}  // namespace pitstop::tp_worker
