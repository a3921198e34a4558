// The declaration of a weight by the block that uses it (tp_worker/blocks): name, shape, split over
// the ranks, and encoding. Loading, staging, digesting, keeping, reading back, pushing and binding
// follow from this declaration (weight_layout.h).
#pragma once

#include "base/ids.h"
#include "tp_worker/weights/encoding.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr int kTpMax = 64;

// A rank, and the number of ranks. Experts are divided over `ep` groups of tp / ep consecutive
// ranks; the ranks of a group split each of its experts.
struct RankOf {
    std::int64_t rank = 0;
    std::int64_t tp = 1;
    std::int64_t ep = 1;  // divides tp

    // The rank within its group, for weights that the group splits.
    [[nodiscard]] RankOf in_group() const { return {.rank = rank % (tp / ep), .tp = tp / ep}; }
};

// A rank's share of an axis. An axis is a dimension of a weight, or the units that such a dimension
// consists of, such as heads.
struct AxisShare {
    struct Range {
        std::int64_t begin = 0;
        std::int64_t num = 0;
        std::int64_t index = 0;  // among all ranks' ranges; ranks with the same index have copies
    };
    std::vector<Range> ranges{};  // contiguous in the shard, in this order
    std::int64_t num_parts = 1;   // ranges of all ranks, copies counted once
    std::int64_t padding = 0;     // after the ranges: zeros, so that all ranks have the same size
    // Every cut on every rank is at a multiple of this, or at the axis' end. 0: no cuts.
    std::int64_t cut_unit = 0;

    [[nodiscard]] std::int64_t num_held() const;  // without padding
    [[nodiscard]] std::int64_t num() const { return num_held() + padding; }
    // Returns the share with each element replaced by `times` elements: for example heads
    // by their rows.
    [[nodiscard]] AxisShare scaled(std::int64_t times) const;
    // Returns the share of a rank without the weight: empty, in the form of the holders' shares.
    [[nodiscard]] AxisShare of_no_holder() const;
};

// The share of a rank that has the whole axis. Other ranks may have copies, or nothing.
[[nodiscard]] AxisShare whole_share(std::int64_t extent);

// Even shares. REQUIRES: tp divides the extent.
[[nodiscard]] AxisShare even_share(std::int64_t extent, const RankOf& rank);
// Elements [begin, begin + num) of `extent` that belong to the rank's group: as evenly as possible.
// REQUIRES: at least one per group.
struct Elements {
    std::int64_t begin = 0;
    std::int64_t num = 0;
};
[[nodiscard]] Elements elements_of_group(std::int64_t extent, const RankOf& rank);
// Whole units, as evenly as possible; the last rank also has the remainder that is less than a
// unit. REQUIRES: at least one unit per rank.
[[nodiscard]] AxisShare share_in_units(std::int64_t extent, std::int64_t unit, const RankOf& rank);
// Shares of equal size, with padding on the last ranks.
[[nodiscard]] AxisShare padded_share(std::int64_t extent, const RankOf& rank);

// One dimension of a weight is cut; the others are whole on every rank.
struct Split {
    std::size_t dim = 0;  // of the shape, outermost first
    AxisShare share{};
};

// A slot's number, in the order in which the blocks declare them, which is also the order of use.
enum class WeightId : std::int32_t {};

struct WeightSlot {
    static constexpr std::size_t kDimsMax = 3;

    std::string name{};                 // the name in checkpoints
    std::vector<std::int64_t> shape{};  // of the whole weight: 1 to kDimsMax extents
    std::optional<Split> split{};       // empty: every rank has the whole weight
    Encoding encoding = Encoding::kBf16;
    // Set if the weight may be left out together with this one: both are zero then.
    std::optional<WeightId> left_out_with{};
};

// The place of a matrix in a tensor that contains several, in elements: (row, col) of the matrix is
// element begin + row * per_row + col * per_col.
struct Strides {
    std::int64_t begin = 0;
    std::int64_t per_row = 0;
    std::int64_t per_col = 1;
};

// The weights of a model, as declared by its blocks.
class WeightSlots {
  public:
    WeightId add(WeightSlot slot);
    // Adds another name under which checkpoints and trainers may send the slot: that of a head tied
    // to the embedding. REQUIRES: a model has at most one.
    void tie(std::string name, WeightId to);

    // A tensor that checkpoints and trainers may send instead of several weights, such as the
    // matrices of all experts. REQUIRES: without strides, its elements are those of the slots, in
    // this order.
    struct Pack {
        std::string name{};
        std::vector<std::int64_t> shape{};
        std::vector<WeightId> slots{};
        // Set if the elements of the slots, which are matrices, are not in this order.
        std::vector<Strides> strides{};  // of each slot
        // The last two dimensions may be swapped: [E, a, b] may arrive as [E, b, a].
        // REQUIRES: a != b, so that the shape tells which form it is.
        bool may_be_transposed = false;
    };
    void pack(Pack pack);

    struct Tie {
        std::string name{};
        WeightId slot{};
    };
    [[nodiscard]] std::span<const WeightSlot> list() const { return list_; }
    [[nodiscard]] const std::optional<Tie>& tied() const { return tied_; }
    [[nodiscard]] std::span<const Pack> packs() const { return packs_; }

  private:
    std::vector<WeightSlot> list_{};
    std::optional<Tie> tied_{};
    std::vector<Pack> packs_{};
};

}  // namespace pitstop::tp_worker
