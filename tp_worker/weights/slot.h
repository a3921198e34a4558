// What a weight is, said once by the block that computes with it (tp_worker/blocks): its name, its
// shape, how it is split over the ranks, and how it is resident. Loading, staging, digesting,
// keeping, reading back, pushing and binding follow from it (weight_layout.h).
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

// A rank, and of how many.
struct RankOf {
    std::int64_t rank = 0;
    std::int64_t tp = 1;
};

// What a rank holds of an axis: of a dimension of a weight, or of what such a dimension counts, as
// heads.
struct AxisShare {
    struct Range {
        std::int64_t begin = 0;
        std::int64_t num = 0;
        std::int64_t index = 0;  // among all ranks' ranges; whoever has the same holds a copy
    };
    std::vector<Range> ranges{};  // back to back in the shard, in this order
    std::int64_t num_parts = 1;   // all ranks' ranges, copies counted once
    std::int64_t padding = 0;     // behind the ranges: zeros, so that all ranks have as many
    // Every cut on every rank is at a multiple of this, or at the axis' end. 0: there is no cut.
    std::int64_t cut_unit = 0;

    [[nodiscard]] std::int64_t num_held() const;  // without padding
    [[nodiscard]] std::int64_t num() const { return num_held() + padding; }
    // Each element of the axis becomes `times` of them: heads become their rows.
    [[nodiscard]] AxisShare scaled(std::int64_t times) const;
};

// Even shares. REQUIRES: tp divides the extent.
[[nodiscard]] AxisShare even_share(std::int64_t extent, const RankOf& rank);
// Whole units, as even as they go; the last rank has what is less than a unit. REQUIRES: there are
// as many units as ranks.
[[nodiscard]] AxisShare share_in_units(std::int64_t extent, std::int64_t unit, const RankOf& rank);
// Shares that are alike with padding on the ranks that come last.
[[nodiscard]] AxisShare padded_share(std::int64_t extent, const RankOf& rank);

// One dimension of a weight is cut; the others are whole on every rank.
struct Split {
    std::size_t dim = 0;  // of the shape, outermost first
    AxisShare share{};
};

struct WeightSlot {
    static constexpr std::size_t kDimsMax = 3;

    std::string name{};                 // as checkpoints have it
    std::vector<std::int64_t> shape{};  // of the whole weight: 1 to kDimsMax extents
    std::optional<Split> split{};       // empty: every rank holds all of it
    Encoding encoding = Encoding::kBf16;
};

// A slot's number, in the order in which the blocks declare theirs: that of use, too.
enum class WeightId : std::int32_t {};

// The weights of a model, as its blocks declare them.
class WeightSlots {
  public:
    WeightId add(WeightSlot slot);
    // Another name of a slot, under which checkpoints and trainers may bring it as well: a head
    // that is tied to the embedding. REQUIRES: a model has at most one.
    void tie(std::string name, WeightId to);

    // A tensor that checkpoints and trainers may bring in place of several weights: a matrix for
    // each expert, one behind the other. REQUIRES: its elements are those of the slots, in this
    // order.
    struct Pack {
        std::string name{};
        std::vector<std::int64_t> shape{};
        std::vector<WeightId> slots{};
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
