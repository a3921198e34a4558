#include "tp_worker/blocks/dense_mlp.h"

#include <fmt/format.h>

namespace pitstop::tp_worker {

DenseMlp::DenseMlp(const ModelConfig& config, std::int64_t layer, const RankOf& rank)
    : layer_(layer),
      mlp_(
          {.prefix = fmt::format("model.layers.{}.mlp.", layer),
           .hidden = config.hidden,
           .ffn = config.ffn,
           .has_bias = config.mlp_bias},
          rank
      ) {}

void DenseMlp::check_split(
    const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
) {
    if (!GatedMlp::splits(config.ffn, tp))
        problems.push_back(fmt::format("an intermediate size of only {}", config.ffn));
}

void DenseMlp::declare(const ModelConfig& config, WeightSlots& slots) {
    norm_ = slots.add(
        {.name = fmt::format("model.layers.{}.post_attention_layernorm.weight", layer_),
         .shape = {config.hidden}}
    );
    mlp_.declare(slots);
}

void DenseMlp::run(const Trunk& trunk, const Pass& pass) const {
    trunk.norm(pass, norm_);
    mlp_.run(trunk, pass);
}

}  // namespace pitstop::tp_worker
