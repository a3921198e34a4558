// The gated MLP: y = down(silu(gate(x)) * up(x)), for this rank's columns. x is Trunk::normed.
//
// Gate and up are split by rows, down by columns, all three in whole words of the digest: tp need
// not divide the intermediate size.
#pragma once

#include "tp_worker/blocks/trunk.h"

#include <array>
#include <cstdint>
#include <string>

namespace pitstop::tp_worker {

class GatedMlp {
  public:
    static constexpr Encoding kEncoding = Encoding::kBf16;

    struct Args {
        std::string prefix{};  // of its weights' names: "model.layers.0.mlp."
        std::int64_t hidden = 0;
        std::int64_t ffn = 0;
        bool has_bias = false;
    };
    GatedMlp(Args args, const RankOf& rank);
    // Returns whether each rank gets at least one word of its columns.
    [[nodiscard]] static bool splits(std::int64_t ffn, std::int64_t tp);

    void declare(WeightSlots& slots);
    // `y` gets this rank's part of the output; the parts are then summed over the ranks.
    void ask(Scratch& scratch, const Trunk& trunk, View2<float> y);
    void run(const Trunk& trunk, const Pass& pass) const;
    [[nodiscard]] std::array<const Product*, 2> products() const { return {&gate_up_, &down_}; }

  private:
    Args args_;
    AxisShare share_{};  // of F
    Product gate_up_{};
    Product down_{};
    // gate_ and up_ are columns of one matrix: one product computes them if their weights adjoin.
    kernels::ActView gate_{};   // [T, F]
    kernels::ActView up_{};     // [T, F]
    kernels::ActView gated_{};  // [T, F]
};

}  // namespace pitstop::tp_worker
