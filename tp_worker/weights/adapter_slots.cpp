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

AdaptedModule add(
    const WeightSlot& base,
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
    return {
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
    std::span<const WeightId> products,
    const AdapterConfig& config,
    std::int64_t rank_max
) {
    AdapterSlots made;
    std::vector<std::string> not_served;
    std::vector<std::string> too_high;
    const auto look = [&](const std::string& path, const WeightSlot* slot, WeightId id
                      ) -> Result<> {
        ASSIGN_OR_RETURN(const std::optional<AdapterConfig::Module> module, config.of(path));
        if (!module) return Ok{};
        if (slot == nullptr) {
            not_served.push_back(path);
        } else if (module->rank > rank_max) {
            too_high.push_back(path);
        } else {
            made.modules.push_back(add(*slot, path, made.slots, *module));
            made.modules.back().base = id;
        }
        return Ok{};
    };
    for (std::size_t i = 0; i < base.list().size(); ++i) {
        const WeightSlot& slot = base.list()[i];
        const std::string path = path_of(slot);
        if (path.empty()) continue;
        const auto id = static_cast<WeightId>(i);
        const bool is_product = std::ranges::find(products, id) != products.end();
        RETURN_IF_ERROR(look(path, is_product ? &slot : nullptr, id));
    }
    if (base.tied()) RETURN_IF_ERROR(look("lm_head", nullptr, {}));
    // PEFT's "all-linear" leaves heads and embeddings out.
    if (!config.is_of_all_linear() && !not_served.empty()) {
        return make_error(
            ErrorCode::kUnsupported,
            "adapters of {} are not served; accepted are modules of attention, of linear_attn's "
            "projections and of dense MLPs",
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
