#include "tp_worker/weights/weight_layout.h"

#include "tp_worker/weights/adapter_names.h"
#include "tp_worker/weights/wrapped_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes: a cache line, which suits wide loads
struct Extents {
    std::int64_t outer = 1;  // number of repetitions of the split dimension
    std::int64_t inner = 1;  // rows per element of the split dimension
};

Result<> check(const WeightSlot& slot) {
    const std::size_t num_dims = slot.shape.size();
    bool is_right = num_dims >= 1 && num_dims <= WeightSlot::kDimsMax;
    for (const std::int64_t extent : slot.shape) is_right = is_right && extent >= 1;
    if (slot.split) is_right = is_right && slot.split->dim < num_dims;
    if (is_right) return Ok{};
    return make_error(
        ErrorCode::kUnsupported,
        "'{}' has shape {}; a weight has 1 to {} dimensions, none of them empty",
        slot.name,
        checkpoint::text_of(slot.shape),
        WeightSlot::kDimsMax
    );
}

// Adds the rectangles of a weight whose rows are split: over all rows, or in each
// matrix separately.
void add_row_parts(const WeightSlot& slot, WeightTensor& tensor) {
    const AxisShare& share = slot.split->share;
    Extents extents;
    for (std::size_t d = 0; d < slot.split->dim; ++d) extents.outer *= slot.shape[d];
    for (std::size_t d = slot.split->dim + 1; d + 1 < slot.shape.size(); ++d)
        extents.inner *= slot.shape[d];
    CHECK(share.padding == 0 || extents.outer == 1);  // padding must be the shard's last rows
    const std::int64_t whole_rows = tensor.whole_rows / extents.outer;
    const std::int64_t shard_rows = share.num() * extents.inner;
    tensor.rows = extents.outer * shard_rows;
    tensor.num_parts = extents.outer * share.num_parts;
    for (std::int64_t outer = 0; outer < extents.outer; ++outer) {
        std::int64_t shard_row = outer * shard_rows;
        for (const AxisShare::Range& range : share.ranges) {
            tensor.parts.push_back({
                .index = outer * share.num_parts + range.index,
                .rows = range.num * extents.inner,
                .cols = tensor.whole_cols,
                .whole_row = outer * whole_rows + range.begin * extents.inner,
                .whole_stride = tensor.whole_cols,
                .shard_row = shard_row,
                .shard_stride = tensor.whole_cols,
            });
            shard_row += range.num * extents.inner;
        }
    }
}

void add_col_parts(const WeightSlot& slot, WeightTensor& tensor) {
    const AxisShare& share = slot.split->share;
    CHECK(share.padding == 0);  // a row ends with its last column, without padding
    tensor.cols = share.num();
    tensor.num_parts = share.num_parts;
    tensor.cuts_words = share.cut_unit % word_len(slot.encoding) != 0;
    std::int64_t shard_col = 0;
    for (const AxisShare::Range& range : share.ranges) {
        tensor.parts.push_back({
            .index = range.index,
            .rows = tensor.whole_rows,
            .cols = range.num,
            .whole_col = range.begin,
            .whole_stride = tensor.whole_cols,
            .shard_col = shard_col,
            .shard_stride = tensor.cols,
        });
        shard_col += range.num;
    }
}

WeightTensor tensor_of(const WeightSlot& slot) {
    WeightTensor tensor{.name = slot.name, .shape = slot.shape};
    tensor.encoding = slot.encoding;
    tensor.whole_cols = slot.shape.back();
    tensor.whole_rows = 1;
    for (std::size_t d = 0; d + 1 < slot.shape.size(); ++d) tensor.whole_rows *= slot.shape[d];
    tensor.rows = tensor.whole_rows;
    tensor.cols = tensor.whole_cols;
    if (!slot.split) {
        tensor.is_replicated = true;
        tensor.parts.push_back(
            {.rows = tensor.rows,
             .cols = tensor.cols,
             .whole_stride = tensor.cols,
             .shard_stride = tensor.cols}
        );
    } else if (slot.split->dim + 1 == slot.shape.size()) {
        add_col_parts(slot, tensor);
    } else {
        add_row_parts(slot, tensor);
    }
    if (tensor.parts.empty()) {
        tensor.rows = 0;
        tensor.cols = tensor.whole_cols;  // a row always has bytes
    }
    return tensor;
}

}  // namespace

ShardPart ShardPart::cut(std::int64_t begin, std::int64_t num) const {
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, rows);
    const std::int64_t end = std::clamp<std::int64_t>(begin + num, first, rows);
    ShardPart part = *this;
    part.rows = end - first;
    part.whole_row += first;
    part.shard_row += first;
    return part;
}

// Places weights in the order of their declaration, which is the order of use. Lists them by name.
Result<WeightLayout> WeightLayout::make(
    const WeightSlots& slots, ExtraTensors extra, TensorNames names
) {
    WeightLayout layout;
    layout.names_ = names;
    layout.extra_ = extra;
    std::vector<std::size_t> order;  // slot numbers, to be sorted by name
    for (const WeightSlot& slot : slots.list()) {
        RETURN_IF_ERROR(check(slot));
        WeightTensor tensor = tensor_of(slot);
        tensor.offset = layout.bytes_;
        layout.bytes_ += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
        order.push_back(layout.tensors_.size());
        layout.tensors_.push_back(std::move(tensor));
    }
    std::ranges::sort(order, {}, [&](std::size_t i) -> const std::string& {
        return layout.tensors_[i].name;
    });
    std::vector<WeightTensor> by_name;
    layout.by_id_.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        layout.by_id_[order[i]] = i;
        by_name.push_back(std::move(layout.tensors_[order[i]]));
        if (layout.by_name_.emplace(by_name.back().name, i).second) continue;
        return make_error(
            ErrorCode::kUnsupported, "two weights are named '{}'", by_name.back().name
        );
    }
    layout.tensors_ = std::move(by_name);
    for (std::size_t slot = 0; slot < slots.list().size(); ++slot) {
        const std::optional<WeightId>& other = slots.list()[slot].left_out_with;
        if (!other) continue;
        layout.tensors_[layout.by_id_[slot]].left_out_with =
            layout.by_id_[static_cast<std::size_t>(raw(*other))];
    }
    for (const WeightSlots::Pack& slot_pack : slots.packs()) {
        const bool is_plain = slot_pack.strides.empty() && !slot_pack.may_be_transposed;
        if (slot_pack.slots.size() == 1 && is_plain) {
            const std::size_t only =
                layout.by_id_[static_cast<std::size_t>(raw(slot_pack.slots.front()))];
            if (layout.tensors_[only].shape == slot_pack.shape) {
                layout.by_name_.emplace(slot_pack.name, only);
                continue;
            }
        }
        Pack pack{.shape = slot_pack.shape, .strides = slot_pack.strides};
        if (slot_pack.may_be_transposed) {
            const std::vector<std::int64_t>& s = slot_pack.shape;
            pack.transposed_shape = std::vector{s[0], s[2], s[1]};
        }
        for (const WeightId slot : slot_pack.slots)
            pack.tensors.push_back(layout.by_id_[static_cast<std::size_t>(raw(slot))]);
        layout.packs_.emplace(slot_pack.name, std::move(pack));
    }
    if (const std::optional<WeightSlots::Tie>& tie = slots.tied()) {
        layout.tied_ = layout.by_id_[static_cast<std::size_t>(raw(tie->slot))];
        layout.head_name_ = tie->name;
    }
    return layout;
}

namespace {

constexpr std::string_view kText = "model.language_model.";

// Finds a key of a map, in all forms that the model's names may have.
template <class Map>
typename Map::const_iterator find_named(const Map& map, std::string_view name, TensorNames names) {
    if (names == TensorNames::kOfAdapter) return map.find(adapter_name_of(name));
    if (names != TensorNames::kOfHybrid || !name.starts_with(kText)) return map.find(name);
    return map.find(fmt::format("model.{}", name.substr(kText.size())));
}

}  // namespace

const WeightTensor* WeightLayout::find(std::string_view name) const {
    const auto place = find_named(by_name_, name, names_);
    return place == by_name_.end() ? nullptr : &tensors_[place->second];
}

const WeightLayout::Pack* WeightLayout::find_pack(std::string_view name) const {
    const auto place = find_named(packs_, name, names_);
    return place == packs_.end() ? nullptr : &place->second;
}

// An example of such a name: "model.layers.3.self_attn.rotary_emb.inv_freq".
bool WeightLayout::is_rotary_table(std::string_view name) {
    return name.ends_with(".rotary_emb.inv_freq") && name.starts_with("model.");
}

bool WeightLayout::is_ignored(std::string_view name) const {
    if (find(name) != nullptr || is_tied_head(name) || find_pack(name) != nullptr) return false;
    const bool is_of_other_part = names_ == TensorNames::kOfHybrid &&
                                  (name.starts_with("model.visual.") || name.starts_with("mtp."));
    return is_of_other_part || is_rotary_table(name) || extra_ == ExtraTensors::kIgnore;
}

std::size_t offered_max(const WeightLayout& layout) {
    return std::max(kOfferedMin, kOfferedPerTensor * layout.tensors().size());
}

namespace {

std::string problem_of_stranger(const WeightLayout& layout, std::string_view name) {
    if (layout.is_of_adapter())
        return fmt::format("'{}' is no tensor of the adapter that its config describes", name);
    return fmt::format(
        "'{}' is no tensor of this model (--ignore-extra-tensors skips such tensors)", name
    );
}

}  // namespace

std::vector<std::string> find_problems(
    const WeightLayout& layout,
    std::span<const checkpoint::TensorSpec> offered,
    Completeness completeness
) {
    std::vector<std::string> problems;
    std::unordered_set<std::string_view> seen;
    seen.reserve(offered.size());
    std::vector<checkpoint::TensorSpec> wrapped;
    const auto see = [&](std::string_view name) {
        if (!seen.insert(name).second) problems.push_back(fmt::format("'{}' appears twice", name));
    };
    for (const checkpoint::TensorSpec& spec : offered) {
        const WeightTensor* tensor = layout.find_tied(spec.name);
        const WeightLayout::Pack* pack = layout.find_pack(spec.name);
        if (pack != nullptr) tensor = &layout.tensors()[pack->tensors.front()];
        if (tensor == nullptr) {
            if (layout.is_ignored(spec.name)) continue;
            if (const std::string_view wrapper = wrapper_of(layout, spec.name); !wrapper.empty()) {
                wrapped.push_back(spec);
                seen.insert(std::string_view(spec.name).substr(wrapper.size()));
                continue;
            }
            problems.push_back(problem_of_stranger(layout, spec.name));
            continue;
        }
        if (pack == nullptr) {
            see(layout.is_tied_head(spec.name) ? std::string_view(spec.name) : tensor->name);
        } else {
            for (const std::size_t index : pack->tensors) see(layout.tensors()[index].name);
        }
        const std::vector<std::int64_t>& shape = pack == nullptr ? tensor->shape : pack->shape;
        const bool is_transposed = pack != nullptr && spec.shape == pack->transposed_shape;
        if (spec.shape != shape && !is_transposed) {
            problems.push_back(fmt::format(
                "'{}' has shape {}; the config requires {}",
                spec.name,
                checkpoint::text_of(spec.shape),
                checkpoint::text_of(shape)
            ));
        }
        if (!is_accepted(tensor->encoding, spec.dtype)) {
            problems.push_back(fmt::format(
                "'{}' has dtype {}; {} are accepted",
                spec.name,
                name_of(spec.dtype),
                accepted_dtypes(tensor->encoding)
            ));
        }
    }
    std::vector<std::string> at_first = wrapped_problems(layout, wrapped);
    problems.insert(problems.begin(), at_first.begin(), at_first.end());
    if (completeness == Completeness::kPartial) return problems;
    for (const WeightTensor& tensor : layout.tensors()) {
        const bool is_there = seen.contains(tensor.name) ||
                              (layout.is_tied(tensor) && seen.contains(layout.head_name()));
        if (!is_there) {
            problems.push_back(fmt::format("'{}' is missing", tensor.name));
        }
    }
    return problems;
}

Error error_of(std::string_view source, std::span<const std::string> problems) {
    const std::size_t num_shown = std::min(problems.size(), kProblemsShownMax);
    std::string text = fmt::format("{}", fmt::join(problems.first(num_shown), "; "));
    if (problems.size() > num_shown) {
        text += fmt::format("; and {} more", problems.size() - num_shown);
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "'{}' does not hold this model's weights, {} problem(s): {}",
        source,
        problems.size(),
        text
    );
}

}  // namespace pitstop::tp_worker
