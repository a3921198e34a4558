// The block of a gated delta net: delta = out(gated_delta(in(norm(x)))), for this rank's
// heads. Where attention keeps pages, this block keeps a state of fixed size for each
// request (state_pool.h).
//
// Split by key heads, each with its value heads. Projections are split by rows, and out_proj by
// columns. The rows of the convolution and of in_proj_qkv are three ranges: queries, keys, values.
// The norm is whole on each rank.
//
// For a step's drafts, the block keeps the inputs of the recurrence. Once sampling has accepted
// some of the drafts, their inputs change the state (model/draft_replay.h). The kept inputs have at
// most a hundredth of a state's bytes.
//
// Projections have the layout of their family's checkpoints: Qwen3-Next's in_proj_qkvz and
// in_proj_ba, whose rows are grouped by key head, or Qwen3.5's four projections. The op reads both.
//
// Source: transformers 5.24, Qwen3NextGatedDeltaNet, Qwen3_5GatedDeltaNet.
#pragma once

#include "kernels/gated_delta.h"
#include "tp_worker/blocks/state_pool.h"
#include "tp_worker/blocks/trunk.h"
#include "tp_worker/config/model_config.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class GatedDelta {
  public:
    GatedDelta(const ModelConfig& config, std::int64_t layer, const RankOf& rank);
    // Adds to `problems` each size of the configuration that does not split over tp ranks.
    static void check_split(
        const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
    );

    // `config` is the configuration that the constructor got.
    void declare(const ModelConfig& config, WeightSlots& slots, StatePlan& states);
    void ask(Scratch& scratch, const Trunk& trunk);
    void attach(const StatePool& pool) { state_ = pool.part(state_id_); }
    void run(const Trunk& trunk, const Pass& pass) const;
    // Applies drafts of the last pass to the states: those in the batch's drafted_rows.
    void replay(const Trunk& trunk, const Pass& pass) const;
    [[nodiscard]] std::array<const Product*, 2> products() const { return {&in_, &out_}; }

  private:
    // The columns of in_ that hold one kind of value (q, k, ...) of all heads.
    struct Columns {
        std::int64_t begin = 0;
        std::int64_t num = 0;  // of one head
        std::int64_t group_stride = 0;
        std::int64_t group_len = 1;
    };
    [[nodiscard]] kernels::HeadColumns heads_of(const Columns& columns, std::int64_t num_tokens)
        const;
    void declare_projections(std::int64_t hidden, WeightSlots& slots);
    void recur(const Trunk& trunk, const Pass& pass) const;

    DeltaConfig config_{};
    std::int64_t layer_;
    std::int64_t first_value_head_ = 0;  // of this rank
    std::int64_t num_key_heads_ = 0;     // of this rank
    std::int64_t num_value_heads_ = 0;   // of this rank
    AxisShare key_heads_{};
    AxisShare channels_{};              // of the convolution: three ranges
    std::array<Columns, 6> columns_{};  // of q, k, v, z, b, a

    WeightId input_norm_{};
    WeightId conv_{};
    WeightId a_log_{};
    WeightId dt_bias_{};
    WeightId norm_{};
    StateId state_id_{};
    Product in_{};
    Product out_{};
    kernels::ActView projected_{};  // [T, all columns]: the projections' outputs, side by side
    kernels::ActView mixed_{};      // [T, nv*dv]
    kernels::ActView drafted_{};    // [kStateDraftsMax, all columns]: the last pass's drafts
    StatePool::Part state_{};
};

}  // namespace pitstop::tp_worker
