// The blocks of a model on one rank, in the order in which they run:
//
//   x = embedding                          summed over the ranks
//   per block:  x += block(norm(x))        summed over the ranks
//   logits = head(norm(x))                 each rank has its part of the vocabulary
//
// A block declares its weights and what it keeps per request, asks for the memory that it computes
// in, and runs. Everything about a model that is not in its configuration is in its blocks.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "tp_worker/blocks/attention.h"
#include "tp_worker/blocks/dense_mlp.h"
#include "tp_worker/blocks/experts.h"
#include "tp_worker/blocks/gated_delta.h"
#include "tp_worker/blocks/kv_pool.h"
#include "tp_worker/blocks/state_pool.h"
#include "tp_worker/blocks/trunk.h"
#include "tp_worker/blocks/vocabulary.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/weights/adapter_slots.h"
#include "tp_worker/weights/slot.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace pitstop::tp_worker {

using Block = std::variant<Attention, GatedDelta, DenseMlp, Experts>;

class Stack {
  public:
    // Errors: kUnsupported if the model does not split over the ranks, naming the sizes that do
    // not. REQUIRES: rank.ep divides rank.tp.
    static Result<Stack> make(const ModelConfig& config, const RankOf& rank);

    [[nodiscard]] const WeightSlots& slots() const { return slots_; }
    [[nodiscard]] const KvPlan& kv() const { return kv_; }
    [[nodiscard]] const StatePlan& states() const { return states_; }
    [[nodiscard]] const Embedding& embedding() const { return embedding_; }
    [[nodiscard]] const Head& head() const { return head_; }
    [[nodiscard]] std::span<const Block> blocks() const { return blocks_; }
    [[nodiscard]] bool has_experts() const;
    // The choices of the last pass; nothing if no layer has experts.
    [[nodiscard]] const std::optional<Choices>& choices() const { return choices_; }

    // Requests the buffers of every part. Call it twice (scratch.h).
    void ask(Scratch& scratch);
    // REQUIRES: ask() after the scratch was placed; the pools have their memory.
    void attach(const KvPool& pool, const StatePool& states);

    // Fills the tokens' KV and leaves x, which then lacks the last block's delta. `sum` sums over
    // the ranks. Errors: those of `sum`.
    using Sum = std::function<Result<>(View2<float> rows)>;
    [[nodiscard]] Result<> run(const StepBatch& batch, const BoundWeights& weights, const Sum& sum)
        const;

    // Applies accepted drafts of the last pass to the states (model/draft_replay.h).
    void replay(const StepBatch& batch, const BoundWeights& weights) const;

    // The rows of x for the whole step, and a delta that may still have to be added to x.
    [[nodiscard]] const Trunk& trunk() const { return trunk_; }
    Trunk& trunk() { return trunk_; }
    // The blocks' products, in order. The head is not included: it has rows of its own.
    [[nodiscard]] std::vector<const Product*> products() const;
    // The weights that adapters may change: those of the blocks' products, and the experts'.
    [[nodiscard]] std::vector<AdaptableWeight> adaptable() const;

  private:
    Stack(const ModelConfig& config, const RankOf& rank);
    Block make_block(BlockKind kind, std::int64_t layer, const RankOf& rank);

    ModelConfig config_;
    WeightSlots slots_{};
    KvPlan kv_{};
    StatePlan states_{};
    Trunk trunk_{};
    Embedding embedding_;
    std::vector<Block> blocks_{};
    std::optional<Choices> choices_{};
    Head head_;
};

}  // namespace pitstop::tp_worker
