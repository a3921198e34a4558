// The addresses of an adapter's matrices, by the base model's weights that they adapt.
#pragma once

#include "base/view.h"
#include "kernels/low_rank_rows.h"
#include "tp_worker/weights/adapter_slots.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace pitstop::tp_worker {

// Borrowed views, valid as long as the adapter's memory.
class BoundAdapter {
  public:
    // This rank's part: y += scale * B (A x).
    struct Pair {
        View2<const float> a{};  // [rank, in]
        View2<const float> b{};  // [out, rank]
        float scale = 0;
    };

    BoundAdapter() = default;
    // REQUIRES: `layout` was made from these slots; `memory` has layout.bytes().
    BoundAdapter(const AdapterSlots& slots, const WeightLayout& layout, const std::byte* memory);

    // Returns null if the adapter does not change the product of this weight.
    [[nodiscard]] const Pair* find(WeightId base) const {
        const auto index = static_cast<std::size_t>(raw(base));
        return index < pairs_.size() && pairs_[index] ? &*pairs_[index] : nullptr;
    }

    // The pairs for a GPU, by slot of the base model, which has `num_slots` slots.
    [[nodiscard]] std::vector<kernels::LowRankPair> pairs_of_rows(std::size_t num_slots) const;
    // The address of these pairs in the GPU's memory; null on a CPU.
    [[nodiscard]] const kernels::LowRankPair* table() const { return table_; }
    void set_table(const kernels::LowRankPair* table) { table_ = table; }

  private:
    std::vector<std::optional<Pair>> pairs_{};  // by the base's slot
    const kernels::LowRankPair* table_ = nullptr;
};

}  // namespace pitstop::tp_worker
