#include "tp_worker/weights/slot.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

std::int64_t product_of(std::span<const std::int64_t> shape) {
    std::int64_t product = 1;
    for (const std::int64_t extent : shape) product *= extent;
    return product;
}

}  // namespace

std::int64_t AxisShare::num_held() const {
    std::int64_t num = 0;
    for (const Range& range : ranges) num += range.num;
    return num;
}

AxisShare AxisShare::scaled(std::int64_t times) const {
    AxisShare share = *this;
    for (Range& range : share.ranges) {
        range.begin *= times;
        range.num *= times;
    }
    share.padding *= times;
    share.cut_unit *= times;
    return share;
}

AxisShare AxisShare::of_no_holder() const {
    AxisShare share = *this;
    share.ranges.clear();
    share.padding = 0;
    return share;
}

AxisShare whole_share(std::int64_t extent) { return {.ranges = {{.num = extent}}}; }

Elements elements_of_group(std::int64_t extent, const RankOf& rank) {
    CHECK(rank.tp % rank.ep == 0 && extent >= rank.ep);
    const std::int64_t group = rank.rank / (rank.tp / rank.ep);
    const std::int64_t begin = extent * group / rank.ep;
    return {.begin = begin, .num = extent * (group + 1) / rank.ep - begin};
}

AxisShare even_share(std::int64_t extent, const RankOf& rank) {
    CHECK(extent % rank.tp == 0);
    const std::int64_t num = extent / rank.tp;
    return {
        .ranges = {{.begin = rank.rank * num, .num = num, .index = rank.rank}},
        .num_parts = rank.tp,
        .cut_unit = rank.tp > 1 ? num : 0};
}

AxisShare share_in_units(std::int64_t extent, std::int64_t unit, const RankOf& rank) {
    const std::int64_t num_units = extent / unit;
    CHECK(num_units >= rank.tp);
    const auto begin_of = [&](std::int64_t index) {
        return index == rank.tp ? extent : num_units * index / rank.tp * unit;
    };
    const std::int64_t begin = begin_of(rank.rank);
    return {
        .ranges = {{.begin = begin, .num = begin_of(rank.rank + 1) - begin, .index = rank.rank}},
        .num_parts = rank.tp,
        .cut_unit = rank.tp > 1 ? unit : 0};
}

AxisShare padded_share(std::int64_t extent, const RankOf& rank) {
    const std::int64_t num = (extent + rank.tp - 1) / rank.tp;
    const std::int64_t begin = std::min(rank.rank * num, extent);
    const std::int64_t held = std::min(num, extent - begin);
    return {
        .ranges = {{.begin = begin, .num = held, .index = rank.rank}},
        .num_parts = rank.tp,
        .padding = num - held,
        .cut_unit = rank.tp > 1 ? num : 0};
}

WeightId WeightSlots::add(WeightSlot slot) {
    list_.push_back(std::move(slot));
    return static_cast<WeightId>(list_.size() - 1);
}

void WeightSlots::pack(Pack pack) {
    std::int64_t num_elements = 0;
    for (const WeightId slot : pack.slots)
        num_elements += product_of(list_[static_cast<std::size_t>(raw(slot))].shape);
    CHECK(
        pack.strides.empty() ? num_elements == product_of(pack.shape)
                             : pack.strides.size() == pack.slots.size()
    );
    CHECK(!pack.may_be_transposed || (pack.shape.size() == 3 && pack.shape[1] != pack.shape[2]));
    packs_.push_back(std::move(pack));
}

void WeightSlots::tie(std::string name, WeightId to) {
    CHECK(!tied_ && static_cast<std::size_t>(raw(to)) < list_.size());
    tied_ = Tie{std::move(name), to};
}

}  // namespace pitstop::tp_worker
