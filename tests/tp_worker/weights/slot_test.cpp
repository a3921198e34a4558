// Slots of every shape and split, against a definition element by element.
#include "tp_worker/weights/slot.h"

#include "messages/version_digest.h"
#include "tp_worker/weights/bound_weights.h"
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

Result<WeightLayout> layout_with(const WeightSlot& slot) {
    WeightSlots slots;
    slots.add(slot);
    return WeightLayout::make(slots);
}

// A whole weight whose element i is i, and a rank's shard of it, loaded row by row.
std::vector<float> shard_of(const WeightTensor& tensor) {
    const std::int64_t num = tensor.whole_rows * tensor.whole_cols;
    CHECK(num <= 256);  // bf16 represents these integers exactly
    std::vector<float> whole(static_cast<std::size_t>(num));
    std::iota(whole.begin(), whole.end(), 0.f);
    std::vector<bf16> shard(static_cast<std::size_t>(tensor.rows * tensor.cols), to_bf16(-1.f));
    WeightTensor at_start = tensor;
    at_start.offset = 0;
    for (std::int64_t row = 0; row < tensor.whole_rows; ++row) {
        copy_rows(
            {.tensor = at_start,
             .dtype = checkpoint::StoredDtype::kF32,
             .src = reinterpret_cast<const std::byte*>(whole.data() + row * tensor.whole_cols),
             .row_begin = row,
             .num_rows = 1,
             .arena = reinterpret_cast<std::byte*>(shard.data()),
             .ops = *kernels::reference_ops()}
        );
    }
    std::vector<float> values;
    for (const bf16 value : shard) values.push_back(to_float(value));
    return values;
}

// The slot's elements on a rank, in row-major order: those whose index along the split dimension is
// in one of the ranges, in the ranges' order.
std::vector<float> held(const WeightSlot& slot, const std::vector<std::int64_t>& indices) {
    std::vector<float> values;
    const std::vector<std::int64_t>& shape = slot.shape;
    const std::size_t dim = slot.split->dim;
    std::vector<std::vector<std::int64_t>> axes(3, {0});
    for (std::size_t d = 0; d < shape.size(); ++d) {
        axes[d].resize(static_cast<std::size_t>(shape[d]));
        std::iota(axes[d].begin(), axes[d].end(), 0);
    }
    axes[dim] = indices;
    const auto extent = [&](std::size_t d) { return d < shape.size() ? shape[d] : 1; };
    for (const std::int64_t i : axes[0]) {
        for (const std::int64_t j : axes[1]) {
            for (const std::int64_t k : axes[2])
                values.push_back(static_cast<float>((i * extent(1) + j) * extent(2) + k));
        }
    }
    return values;
}

std::vector<std::int64_t> indices_of(const AxisShare& share) {
    std::vector<std::int64_t> indices;
    for (const AxisShare::Range& range : share.ranges) {
        for (std::int64_t i = 0; i < range.num; ++i) indices.push_back(range.begin + i);
    }
    return indices;
}

TEST(WeightSlot, HoldsItsPartOfEveryDimension) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
             {12}, {12, 5}, {5, 12}, {3, 12, 7}, {12, 3, 7}, {2, 9, 12}, {12, 1, 4}}) {
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
            for (const std::int64_t tp : {1, 2, 3}) {
                for (std::int64_t rank = 0; rank < tp; ++rank) {
                    SCOPED_TRACE(
                        testing::Message() << testing::PrintToString(shape) << " dim " << dim
                                           << " rank " << rank << " of " << tp
                    );
                    if (shape[dim] < tp) continue;
                    const RankOf of{.rank = rank, .tp = tp};
                    const WeightSlot slot{
                        .name = "w",
                        .shape = shape,
                        .split = Split{dim, share_in_units(shape[dim], 1, of)}};
                    const Result<WeightLayout> layout = layout_with(slot);
                    ASSERT_TRUE(layout) << layout.error().message;
                    EXPECT_EQ(
                        shard_of(layout->tensors()[0]), held(slot, indices_of(slot.split->share))
                    );
                }
            }
        }
    }
}

// Separate ranges, and copies on other ranks, as when tp does not divide the KV heads.
TEST(WeightSlot, HoldsRangesThatLieApartInTheirOrder) {
    const AxisShare share{
        .ranges = {{.begin = 3, .num = 2, .index = 1}, {.begin = 0, .num = 1, .index = 0}},
        .num_parts = 3};
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{5}, {5, 4}, {2, 5, 4}, {2, 3, 5}}) {
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
            if (shape[dim] != 5) continue;
            SCOPED_TRACE(testing::PrintToString(shape));
            const WeightSlot slot{.name = "w", .shape = shape, .split = Split{dim, share}};
            EXPECT_EQ(shard_of(layout_with(slot)->tensors()[0]), held(slot, {3, 4, 0}));
        }
    }
}

// Experts' matrices in one tensor: the version's digest is the same however ranks divide them.
TEST(WeightSlot, OfThreeDimensionsHasOneDigestForAnyNumberOfRanks) {
    for (const std::size_t dim : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
        SCOPED_TRACE(dim);
        std::set<std::string> digests;
        for (const std::int64_t tp : {1, 2, 4}) {
            std::vector<std::vector<messages::PartDigest>> parts;
            std::vector<messages::RankParts> ranks;
            for (std::int64_t rank = 0; rank < tp; ++rank) {
                const std::vector<std::int64_t> shape{4, 4, 16};
                const RankOf of{.rank = rank, .tp = tp};
                const Result<WeightLayout> layout = layout_with(
                    {.name = "experts",
                     .shape = shape,
                     .split = Split{dim, even_share(shape[dim], of)}}
                );
                ASSERT_TRUE(layout);
                const WeightTensor& tensor = layout->tensors()[0];
                std::vector<bf16> arena;
                for (const float value : shard_of(tensor)) arena.push_back(to_bf16(value));
                parts.push_back(*digest_weights(
                    *layout,
                    reinterpret_cast<const std::byte*>(arena.data()),
                    *kernels::reference_ops(),
                    {}
                ));
            }
            for (std::size_t rank = 0; rank < parts.size(); ++rank)
                ranks.push_back({static_cast<Rank>(rank), parts[rank]});
            const Result<messages::VersionDigest> version = messages::version_digest(ranks);
            ASSERT_TRUE(version) << version.error().message;
            EXPECT_EQ(version->tensors[0].shape, (std::vector<std::int64_t>{4, 4, 16}));
            digests.insert(to_hex(version->digest));
        }
        EXPECT_EQ(digests.size(), 1u);
    }
}

TEST(WeightSlot, ACutInsideAWordOfTheDigestIsKnownOnEveryRank) {
    const auto cuts_words = [](std::int64_t extent, std::int64_t tp) {
        std::set<bool> answers;
        for (std::int64_t rank = 0; rank < tp; ++rank) {
            const RankOf of{.rank = rank, .tp = tp};
            answers.insert(layout_with({.name = "o",
                                        .shape = {2, extent},
                                        .split = Split{1, even_share(extent, of)}})
                               ->tensors()[0]
                               .cuts_words);
        }
        EXPECT_EQ(answers.size(), 1u);
        return *answers.begin();
    };
    EXPECT_FALSE(cuts_words(16, 2));
    EXPECT_FALSE(cuts_words(6, 1));
    EXPECT_TRUE(cuts_words(12, 2));
    EXPECT_TRUE(cuts_words(6, 3));
}

TEST(WeightSlot, OfAnyOtherShapeIsRefusedByItsName) {
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{}, {2, 3, 4, 5}, {2, 0}, {-1}}) {
        const Result<WeightLayout> layout = layout_with({.name = "model.odd", .shape = shape});
        ASSERT_FALSE(layout) << testing::PrintToString(shape);
        EXPECT_EQ(layout.error().code, ErrorCode::kUnsupported);
        EXPECT_NE(layout.error().message.find("'model.odd' has shape ["), std::string::npos);
    }
    const Result<WeightLayout> cut =
        layout_with({.name = "cut", .shape = {4}, .split = Split{1, even_share(4, {})}});
    EXPECT_FALSE(cut);
}

TEST(WeightSlot, ANameThatTwoHaveIsRefused) {
    WeightSlots slots;
    slots.add({.name = "a", .shape = {1}});
    slots.add({.name = "b", .shape = {2}});
    slots.add({.name = "a", .shape = {3}});
    const Result<WeightLayout> layout = WeightLayout::make(slots);
    ASSERT_FALSE(layout);
    EXPECT_NE(layout.error().message.find("'a'"), std::string::npos);
}

// Blocks know their weights by number, all other code by name; the two orders differ.
TEST(BoundWeights, AreFoundByTheSlotThatWasDeclared) {
    WeightSlots slots;
    std::vector<WeightId> ids;
    for (const std::string name : {"c", "a", "d", "b"}) {
        ids.push_back(
            slots.add({.name = name, .shape = {static_cast<std::int64_t>(ids.size()) + 1, 3}})
        );
    }
    const Result<WeightLayout> layout = WeightLayout::make(slots);
    ASSERT_TRUE(layout);
    EXPECT_EQ(layout->tensors()[0].name, "a");
    const std::vector<std::byte> arena(static_cast<std::size_t>(layout->bytes()));
    const BoundWeights weights(*layout, arena.data());
    const std::byte* last = nullptr;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const View2<const bf16>& view = weights.matrix(ids[i]);
        EXPECT_EQ(view.rows, static_cast<std::int64_t>(i) + 1);
        const auto* const data = reinterpret_cast<const std::byte*>(view.data);
        EXPECT_EQ(data, arena.data() + layout->tensor(ids[i]).offset);
        EXPECT_TRUE(last == nullptr || data > last);  // the order of use
        last = data;
    }
    EXPECT_EQ(weights.vector(std::optional<WeightId>{}), nullptr);
}

TEST(WeightLayout, ATiedHeadIsAnotherNameOfItsSlot) {
    for (const bool is_tied : {false, true}) {
        WeightSlots slots;
        const WeightId embedding = slots.add({.name = "embedding", .shape = {7, 4}});
        slots.add({.name = "norm", .shape = {4}});
        if (is_tied) slots.tie("head", embedding);
        const Result<WeightLayout> layout = WeightLayout::make(slots);
        ASSERT_TRUE(layout);
        EXPECT_EQ(layout->find("head"), nullptr);
        EXPECT_EQ(layout->is_tied_head("head"), is_tied);
        EXPECT_FALSE(layout->is_tied_head(""));
        EXPECT_EQ(layout->find_tied("head"), is_tied ? layout->find("embedding") : nullptr);
        EXPECT_EQ(layout->tied(), layout->find_tied("head"));
        EXPECT_EQ(layout->find_tied("norm"), layout->find("norm"));
    }
}

TEST(AxisShare, SharesCoverTheAxisOnceInOrder) {
    for (const std::int64_t extent : {8, 37, 61}) {
        for (const std::int64_t tp : {1, 2, 3, 5}) {
            std::int64_t end = 0;
            std::int64_t padded_end = 0;
            for (std::int64_t rank = 0; rank < tp; ++rank) {
                const RankOf of{.rank = rank, .tp = tp};
                const AxisShare padded = padded_share(extent, of);
                EXPECT_EQ(padded.num(), (extent + tp - 1) / tp);
                EXPECT_EQ(padded.ranges[0].begin, padded_end);
                padded_end += padded.num_held();
                if (extent / 4 < tp) continue;
                const AxisShare units = share_in_units(extent, 4, of);
                EXPECT_EQ(units.ranges[0].begin, end);
                EXPECT_EQ(units.ranges[0].begin % 4, 0);
                end += units.num();
            }
            EXPECT_EQ(padded_end, extent);
            EXPECT_EQ(end, extent / 4 >= tp ? extent : 0);
        }
    }
}

}  // namespace
}  // namespace pitstop::tp_worker
