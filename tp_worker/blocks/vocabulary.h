// The two ends of a model, which are split over the vocabulary: the embedding, x = table[id], and
// the head, logits = head(norm(x)). All ranks have the same number of rows, padded with zeros.
#pragma once

#include "tp_worker/blocks/trunk.h"
#include "tp_worker/config/model_config.h"

#include <cstdint>
#include <string_view>

namespace pitstop::tp_worker {

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

class Embedding {
  public:
    Embedding(const ModelConfig& config, const RankOf& rank);

    void declare(const ModelConfig& config, WeightSlots& slots);
    // Writes this rank's part of x: rows of ids that other ranks have are zeros.
    void run(const Trunk& trunk, const Pass& pass) const;

    [[nodiscard]] WeightId table() const { return table_; }
    // The id of this rank's first row.
    [[nodiscard]] std::int64_t vocab_begin() const { return vocab_begin_; }
    [[nodiscard]] const AxisShare& share() const { return share_; }  // of V

  private:
    AxisShare share_{};
    std::int64_t vocab_begin_;
    WeightId table_{};
};

// A rank's rows of logits: its part of each, and the memory of the whole rows.
struct RowLogits {
    View2<float> part{};  // [R, V_rank], rows contiguous; padding included
    // [R, V], on rank 0 alone: undefined until it is gathered (communicator.h); with one
    // rank it is `part`
    View2<float> whole{};
};

class Head {
  public:
    explicit Head(const RankOf& rank) : rank_(rank) {}

    // A tied head is the embedding under another name.
    void declare(const ModelConfig& config, const Embedding& embedding, WeightSlots& slots);
    void ask(Scratch& scratch, const ModelConfig& config);

    // The rows that need logits are gathered in these buffers if the step has other rows, too.
    [[nodiscard]] View2<float> x() const { return x_; }          // [L, H]
    [[nodiscard]] View2<float> delta() const { return delta_; }  // [L, H]
    // Computes the logits of the rows of x. If delta is not empty, it is added to x first.
    void run(
        const Trunk& trunk, const BoundWeights& weights, View2<float> x, View2<const float> delta
    ) const;
    [[nodiscard]] RowLogits logits_of(std::int64_t num_rows) const;
    [[nodiscard]] const Product& product() const { return product_; }

  private:
    RankOf rank_{};
    WeightId norm_{};
    std::int64_t vocab_rows_ = 0;  // of this rank, padding included
    Product product_{};
    View2<float> x_{};           // [L, H]
    View2<float> delta_{};       // [L, H]
    kernels::ActView normed_{};  // [L, H]
    View2<float> part_{};        // [L, V_rank]
    View2<float> whole_{};       // [L, V], rank 0; with one rank it is part_
};

}  // namespace pitstop::tp_worker
