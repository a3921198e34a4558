// The addresses of the weights of one copy, by the slots that blocks declared. Borrowed views,
// valid as long as the copy's addresses, whatever is written there.
#pragma once

#include "base/bf16.h"
#include "base/check.h"
#include "base/view.h"
#include "tp_worker/weights/slot.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace pitstop::tp_worker {

class BoundWeights {
  public:
    BoundWeights() = default;
    // REQUIRES: `arena` has layout.bytes().
    BoundWeights(const WeightLayout& layout, const std::byte* arena);

    // The rank's part of a weight, [rows, cols] of the shard. REQUIRES: its encoding is bf16.
    [[nodiscard]] const View2<const bf16>& matrix(WeightId id) const {
        CHECK(encodings_[index_of(id)] == Encoding::kBf16);
        return views_[index_of(id)];
    }
    // A weight of one dimension in bf16; null if the model has no such slot.
    [[nodiscard]] const bf16* vector(WeightId id) const { return matrix(id).data; }
    [[nodiscard]] const bf16* vector(std::optional<WeightId> id) const {
        return id ? vector(*id) : nullptr;
    }
    // A weight of one dimension. REQUIRES: its encoding is fp32.
    [[nodiscard]] const float* floats(WeightId id) const {
        CHECK(encodings_[index_of(id)] == Encoding::kF32);
        return reinterpret_cast<const float*>(views_[index_of(id)].data);
    }
    // The address at which the copy begins, which identifies the copy.
    [[nodiscard]] const void* place() const { return arena_; }

  private:
    [[nodiscard]] static std::size_t index_of(WeightId id) {
        return static_cast<std::size_t>(raw(id));
    }

    const std::byte* arena_ = nullptr;
    std::vector<View2<const bf16>> views_{};  // by slot; of an fp32 weight only the address is set
    std::vector<Encoding> encodings_{};       // by slot
};

}  // namespace pitstop::tp_worker
