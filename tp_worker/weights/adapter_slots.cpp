#include "tp_worker/weights/adapter_slots.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::size_t kShownMax = 8;

// The path of the module whose weight this is; empty: a bias, a norm.
std::string path_of(const WeightSlot& slot) {
    if (slot.shape.size() < 2 || !slot.name.ends_with(kWeight)) return {};
    return slot.name.substr(0, slot.name.size() - kWeight.size());
}

// Lets the pair be left out, and gives it to the ranks that have the expert's weight.
void make_of_expert(const Split& base, WeightId next, WeightSlot& a, WeightSlot& b) {
    a.left_out_with = static_cast<WeightId>(raw(next) + 1);
    b.left_out_with = next;
    WeightSlot& whole = base.dim == 0 ? a : b;
    const AxisShare share = whole_share(whole.shape[0]);
    whole.split = Split{0, base.share.ranges.empty() ? share.of_no_holder() : share};
}

AdaptedModule add(
    const WeightSlot& base,
    const AdaptableWeight& weight,
    const std::string& path,
    WeightSlots& slots,
    const AdapterConfig::Module& module
) {
    WeightSlot a{
        .name = path + ".lora_A.weight",
        .shape = {module.rank, base.shape[1]},
        .encoding = Encoding::kF32};
    WeightSlot b{
        .name = path + ".lora_B.weight",
        .shape = {base.shape[0], module.rank},
        .encoding = Encoding::kF32};
    if (base.split) (base.split->dim == 0 ? b : a).split = base.split;
    if (weight.is_of_expert)
        make_of_expert(base.split.value(), static_cast<WeightId>(slots.list().size()), a, b);
    return {
        .base = weight.weight,
        .a = slots.add(std::move(a)),
        .b = slots.add(std::move(b)),
        .rank = module.rank,
        .scale = static_cast<float>(module.scale)};
}

std::string shown(std::vector<std::string> names) {
    const std::size_t num = names.size();
    names.resize(std::min(num, kShownMax));
    std::string text = fmt::format("'{}'", fmt::join(names, "', '"));
    if (num > kShownMax) text += fmt::format(" and {} more", num - kShownMax);
    return text;
}

}  // namespace

Result<AdapterSlots> AdapterSlots::make(
    const WeightSlots& base,
    std::span<const AdaptableWeight> adaptable,
    const AdapterConfig& config,
    std::int64_t rank_max
) {
    AdapterSlots made;
    std::vector<std::string> not_served;
    std::vector<std::string> too_high;
    const auto look = [&](const std::string& path, const AdaptableWeight* weight) -> Result<> {
        ASSIGN_OR_RETURN(const std::optional<AdapterConfig::Module> module, config.of(path));
        if (!module) return Ok{};
        if (weight == nullptr) {
            not_served.push_back(path);
        } else if (module->rank > rank_max) {
            too_high.push_back(path);
        } else {
            const WeightSlot& slot = base.list()[static_cast<std::size_t>(raw(weight->weight))];
            made.modules.push_back(add(slot, *weight, path, made.slots, *module));
        }
        return Ok{};
    };
    std::vector<const AdaptableWeight*> by_slot(base.list().size());
    for (const AdaptableWeight& weight : adaptable)
        by_slot[static_cast<std::size_t>(raw(weight.weight))] = &weight;
    for (std::size_t i = 0; i < by_slot.size(); ++i) {
        const std::string path = path_of(base.list()[i]);
        if (!path.empty()) RETURN_IF_ERROR(look(path, by_slot[i]));
    }
    if (base.tied()) RETURN_IF_ERROR(look("lm_head", nullptr));
    // PEFT's "all-linear" leaves heads and embeddings out.
    if (!config.is_of_all_linear() && !not_served.empty()) {
        return make_error(
            ErrorCode::kUnsupported,
            "adapters of {} are not served; accepted are modules of attention, of linear_attn's "
            "projections, of dense MLPs, of experts and of their routers",
            shown(std::move(not_served))
        );
    }
    if (!too_high.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the rank of {} is over {}, the limit of this tree (--max-adapter-rank)",
            shown(std::move(too_high)),
            rank_max
        );
    }
    if (made.modules.empty()) {
        return Error{
            ErrorCode::kInvalidArgument,
            "the adapter adapts no module of this model: none matches its target_modules"};
    }
    return made;
}

}  // namespace pitstop::tp_worker
