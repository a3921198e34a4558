// The block of experts: E gated MLPs. A router chooses k of them for each token, and their weights.
// A shared expert, if the model has one, computes every token:
//
//   delta = sum_j weight_j * expert_j(n)  (+ sigmoid(s n) * shared(n)),  n = norm(x)
//
// All ranks choose the same experts, because x is the same on all of them: every rank has the whole
// router and the shared expert's whole gate. Experts are divided over groups of ranks (RankOf::ep).
// A group computes the rows of its own experts, which its ranks split like the gated MLP, by their
// intermediate size; the sum over all ranks adds the groups' parts of delta. Experts are
// numbered over the whole model; only begins_ counts from the group's first expert.
//
// Source: transformers 5.24, Qwen3MoeSparseMoeBlock, Qwen2MoeSparseMoeBlock, MixtralSparseMoeBlock.
#pragma once

#include "tp_worker/blocks/expert_adapters.h"
#include "tp_worker/blocks/gated_mlp.h"
#include "tp_worker/blocks/trunk.h"
#include "tp_worker/config/model_config.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr std::int64_t kLoadCountsMax = std::int64_t{1} << 16;  // as in messages::ExpertLoad

// The choices of a pass's routers, in all layers; layers without experts have zeros.
struct Choices {
    std::span<std::int32_t> experts{};  // [num_layers, tokens_max, per_token]
    std::int64_t num_layers = 0;
    std::int64_t tokens_max = 0;
    std::int64_t per_token = 0;
    std::int64_t num_experts = 0;
    // [num_layers, num_experts]: how often each expert was chosen in all passes. Layers without
    // experts count the zeros that `experts` has for them. Empty if there would be more than
    // kLoadCountsMax counts.
    std::span<std::int64_t> load{};

    // REQUIRES: the model has experts.
    static Choices ask(Scratch& scratch, const ModelConfig& config);
    [[nodiscard]] View2<std::int32_t> of_layer(std::int64_t layer) const;
};

class Experts {
  public:
    Experts(const ModelConfig& config, std::int64_t layer, const RankOf& rank);
    // Adds to `problems` each size of the configuration that does not split over these ranks.
    static void check_split(
        const ModelConfig& config, const RankOf& ranks, std::vector<std::string>& problems
    );

    // `config` is the configuration that the constructor got.
    void declare(const ModelConfig& config, WeightSlots& slots);
    // The block's choices are stored in its layer's part of `choices`.
    void ask(Scratch& scratch, const Trunk& trunk, const Choices& choices);
    void run(const Trunk& trunk, const Pass& pass) const;
    // The products that every token uses. The experts' products are not included: they have many
    // weights each.
    [[nodiscard]] std::vector<const Product*> products() const;
    // The weights of all experts of the model, among which the router chooses.
    [[nodiscard]] std::vector<WeightId> weights_of_experts() const;
    // The weights of the router, and of the shared expert's gate.
    [[nodiscard]] std::vector<WeightId> weights_of_routers() const;

  private:
    // The weights of one expert. The group's experts follow each other in memory, in the order
    // of declaration.
    struct Expert {
        WeightId gate{};
        WeightId up{};
        WeightId down{};
    };
    [[nodiscard]] std::int64_t stride(const BoundWeights& weights) const;
    void follow(const Trunk& trunk, const Pass& pass, const kernels::RouteArgs& route) const;
    void sort(const Trunk& trunk, const Pass& pass) const;
    void multiply(const Trunk& trunk, const Pass& pass) const;
    [[nodiscard]] const Expert& first() const {
        return all_[static_cast<std::size_t>(experts_.begin)];
    }
    [[nodiscard]] const Expert& last() const {
        return all_[static_cast<std::size_t>(experts_.begin + experts_.num - 1)];
    }

    ExpertsConfig config_{};
    std::int64_t hidden_;
    std::int64_t layer_;
    Elements experts_{};  // the experts of the rank's group
    AxisShare share_{};   // of one expert's intermediate size
    WeightId norm_{};
    Product router_{};
    std::vector<Expert> all_{};  // of the model, other groups' experts included
    std::optional<GatedMlp> shared_{};
    Product shared_gate_{};

    View2<float> logits_{};               // [T, E]
    View2<std::int32_t> chosen_{};        // [T, k]
    View2<float> weights_{};              // [T, k]
    View2<std::int32_t> row_of_{};        // [T, k]
    std::span<std::int32_t> begins_{};    // [experts_.num + 1]
    std::span<std::int32_t> token_of_{};  // [T * k]
    kernels::ActView sorted_{};           // [T * k, H], each token's row with each of its experts
    kernels::ActView gate_{};             // [T * k, I]: gate and up are columns of one matrix
    kernels::ActView up_{};               // [T * k, I]
    kernels::ActView gated_{};            // [T * k, I]
    View2<float> rows_{};                 // [T * k, H], the experts' outputs
    View2<float> shared_rows_{};          // [T, H]
    View2<float> shared_logits_{};        // [T, 1]
    ExpertAdapters adapters_{};
};

}  // namespace pitstop::tp_worker
