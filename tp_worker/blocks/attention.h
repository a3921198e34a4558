// The attention block: delta = o(attention(rope(qkv(norm(x))))), for this rank's heads. With gates,
// each head's output is multiplied by the sigmoid of its gate before o (Qwen3-Next).
//
// Weights are split as in Megatron: q, k and v by rows, o by columns; the norms and o's bias are
// whole. If tp does not divide the KV heads, a rank has a copy of every KV head that its query
// heads need. Each copy serves the same number of query heads (gcd(Q / K, Q / tp)), so local query
// head h always reads local KV head h / (local Q / local K).
#pragma once

#include "tp_worker/blocks/kv_pool.h"
#include "tp_worker/blocks/trunk.h"
#include "tp_worker/config/model_config.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class Attention {
  public:
    Attention(const ModelConfig& config, std::int64_t layer, const RankOf& rank);
    // Adds to `problems` each size of the configuration that does not split over tp ranks.
    static void check_split(
        const ModelConfig& config, std::int64_t tp, std::vector<std::string>& problems
    );

    // `config` is the configuration that the constructor got, as for every block.
    void declare(const ModelConfig& config, WeightSlots& slots, KvPlan& kv);
    void ask(Scratch& scratch, const Trunk& trunk);
    void attach(const KvPool& pool) { kv_ = pool.cache(kv_id_); }
    void run(const Trunk& trunk, const Pass& pass) const;
    [[nodiscard]] std::array<const Product*, 2> products() const { return {&qkv_, &o_}; }

    [[nodiscard]] std::int64_t num_q_heads() const { return q_heads_.num(); }    // of this rank
    [[nodiscard]] std::int64_t num_kv_heads() const { return kv_heads_.num(); }  // of this rank

  private:
    AxisShare q_heads_{};
    AxisShare kv_heads_{};
    std::int64_t layer_;
    std::int64_t head_dim_;
    RopeConfig rope_{};
    bool is_gated_;  // each head has a gate, whose rows in q_proj follow the head's queries
    std::optional<std::int64_t> window_{};

    WeightId input_norm_{};
    std::optional<WeightId> q_norm_{};
    std::optional<WeightId> k_norm_{};
    KvId kv_id_{};

    Product qkv_{};
    Product o_{};
    // q_, k_ and v_ are columns of one matrix: one product computes them if their weights adjoin.
    kernels::ActView q_{};         // [T, Q*D], with gates [T, Q*2*D]
    kernels::ActView k_{};         // [T, K*D]
    kernels::ActView v_{};         // [T, K*D]
    kernels::ActView rotated_{};   // [T, Q*D]: queries as attention reads them
    kernels::ActView attended_{};  // [T, Q*D]
    View2<float> cos_{};           // [positions, D/2]
    View2<float> sin_{};           // [positions, D/2]
    kernels::Workspace workspace_{};
    std::uint32_t* arrivals_ = nullptr;  // on a GPU: attention's counters, zero between its calls
    kernels::KvCache kv_{};
};

}  // namespace pitstop::tp_worker
