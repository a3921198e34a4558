// The gated MLP of a layer without experts: delta = down(silu(gate(norm(x))) * up(norm(x))), by
// this rank's columns.
//
// Gate and up are split by rows, down by columns, all three in whole words of the digest: tp need
// not divide the intermediate size.
#pragma once

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
    // Adds to `problems` what of the configuration does not split over tp ranks.
    static void check_split(
        const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
    );

    // `config` is the one that it was made of, here and below.
    void declare(const ModelConfig& config, WeightSlots& slots);
    void ask(Scratch& scratch, const Trunk& trunk);
    void run(const Trunk& trunk, const Pass& pass) const;
    [[nodiscard]] std::array<const Product*, 2> products() const { return {&gate_up_, &down_}; }

    [[nodiscard]] std::int64_t ffn() const { return share_.num(); }  // F of this rank

  private:
    AxisShare share_{};  // of F
    std::int64_t layer_;
    WeightId norm_{};
    Product gate_up_{};
    Product down_{};
    kernels::ActView
        gate_{};             // [T, F]: gate and up are columns of one matrix, so that their product
    kernels::ActView up_{};  // [T, F]  is one product where the weights lie back to back
    kernels::ActView gated_{};  // [T, F]
};

}  // namespace pitstop::tp_worker
