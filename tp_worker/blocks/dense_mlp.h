// The block of a layer without experts: delta = mlp(norm(x)).
#pragma once

#include "tp_worker/blocks/gated_mlp.h"
#include "tp_worker/blocks/trunk.h"
#include "tp_worker/config/model_config.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class DenseMlp {
  public:
    DenseMlp(const ModelConfig& config, std::int64_t layer, const RankOf& rank);
    // Adds to `problems` each size of the configuration that does not split over tp ranks.
    static void check_split(
        const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
    );

    // `config` is the configuration that the constructor got.
    void declare(const ModelConfig& config, WeightSlots& slots);
    void ask(Scratch& scratch, const Trunk& trunk) { mlp_.ask(scratch, trunk, trunk.delta); }
    void run(const Trunk& trunk, const Pass& pass) const;
    [[nodiscard]] std::array<const Product*, 2> products() const { return mlp_.products(); }

  private:
    std::int64_t layer_;
    WeightId norm_{};
    GatedMlp mlp_;
};

}  // namespace pitstop::tp_worker
