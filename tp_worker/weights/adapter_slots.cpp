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

// Gives a pair to the ranks that have the expert's weight.
void make_of_expert(const Split& base, WeightSlot& a, WeightSlot& b) {
    WeightSlot& whole = base.dim == 0 ? a : b;
    const AxisShare share = whole_share(whole.shape[0]);
    whole.split = Split{0, base.share.ranges.empty() ? share.of_no_holder() : share};
}

std::string shown(std::vector<std::string> names) {
    const std::size_t num = names.size();
    names.resize(std::min(num, kShownMax));
    std::string text = fmt::format("'{}'", fmt::join(names, "', '"));
    if (num > kShownMax) text += fmt::format(" and {} more", num - kShownMax);
    return text;
}

// Makes the slots of an adapter, in the order of the base's weights.
class SlotsMaker {
  public:
    SlotsMaker(
        const WeightSlots& base,
        std::span<const AdaptableWeight> adaptable,
        ModuleSearch& search,
        std::int64_t rank_max
    )
        : base_(base),
          search_(search),
          config_(search.config()),
          rank_max_(rank_max),
          slots_(base.list().size()) {
        for (const AdaptableWeight& weight : adaptable)
            slots_[index_of(weight.weight)].adaptable = &weight;
    }

    Result<AdapterSlots> make() {
        if (config_.has_parameters()) RETURN_IF_ERROR(find_parameters());
        for (std::size_t i = 0; i < slots_.size(); ++i) RETURN_IF_ERROR(look(i));
        if (base_.tied()) {
            ASSIGN_OR_RETURN(const std::optional<ModuleSearch::Module> head, search_.of("lm_head"));
            if (head) not_served_.emplace_back("lm_head");
        }
        RETURN_IF_ERROR(check());
        for (const WeightSlots::Pack* const pack : packs_) add_packs(*pack);
        return std::move(made_);
    }

  private:
    struct OfSlot {
        const AdaptableWeight* adaptable = nullptr;          // null: not adaptable
        std::optional<ModuleSearch::Module> by_parameter{};  // of target_parameters
        std::size_t made = 0;                                // its module in made_
    };
    static std::size_t index_of(WeightId id) { return static_cast<std::size_t>(raw(id)); }

    // Of transformers 5: a parameter of its own for each pack of the base, and for each weight that
    // is in no pack of experts.
    Result<> find_parameters() {
        for (const WeightSlots::Pack& pack : base_.packs()) {
            ASSIGN_OR_RETURN(const auto module, search_.of_parameter(pack.name));
            if (!module) continue;
            RETURN_IF_ERROR(check_sides(pack));
            packs_.push_back(&pack);
            for (const WeightId slot : pack.slots) slots_[index_of(slot)].by_parameter = module;
        }
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            if (is_of_expert(i)) continue;
            ASSIGN_OR_RETURN(const auto module, search_.of_parameter(base_.list()[i].name));
            // A pack has set it by the name that transformers 5 has.
            if (module && !slots_[i].by_parameter) slots_[i].by_parameter = module;
        }
        return Ok{};
    }

    // Otherwise the shapes tell the two forms of PEFT's tensors apart.
    Result<> check_sides(const WeightSlots::Pack& pack) const {
        const bool is_square = pack.shape.size() == 3 && pack.shape[1] == pack.shape[2];
        if (!is_square || config_.has_sides_in_order()) return Ok{};
        return make_error(
            ErrorCode::kUnsupported,
            "the matrices of '{}' are square, and PEFT before 0.19.1 swaps their sides; accepted "
            "is a peft_version of 0.19.1 or later: train the adapter with such a version",
            pack.name
        );
    }

    [[nodiscard]] bool is_of_expert(std::size_t i) const {
        return slots_[i].adaptable != nullptr && slots_[i].adaptable->is_of_expert;
    }

    [[nodiscard]] bool may_be_left_out(std::size_t i) const {
        const OfSlot& slot = slots_[i];
        if (slot.by_parameter) return false;
        return is_of_expert(i) || (slot.adaptable->is_of_router && config_.is_of_all_linear());
    }

    Result<> look(std::size_t i) {
        const std::string path = path_of(base_.list()[i]);
        std::optional<ModuleSearch::Module> module = slots_[i].by_parameter;
        // With target_parameters, experts are parameters and no modules.
        const bool may_be_module = !path.empty() && !(is_of_expert(i) && config_.has_parameters());
        if (!module && may_be_module) {
            ASSIGN_OR_RETURN(module, search_.of(path));
        }
        if (!module) return Ok{};
        if (path.empty() || slots_[i].adaptable == nullptr) {
            not_served_.push_back(path.empty() ? base_.list()[i].name : path);
        } else if (module->rank > rank_max_) {
            too_high_.push_back(path);
        } else {
            add(i, path, *module);
        }
        return Ok{};
    }

    void add(std::size_t i, const std::string& path, const ModuleSearch::Module& module) {
        const WeightSlot& base = base_.list()[i];
        WeightSlot a{
            .name = path + ".lora_A.weight",
            .shape = {module.rank, base.shape[1]},
            .encoding = Encoding::kF32};
        WeightSlot b{
            .name = path + ".lora_B.weight",
            .shape = {base.shape[0], module.rank},
            .encoding = Encoding::kF32};
        if (base.split) (base.split->dim == 0 ? b : a).split = base.split;
        if (is_of_expert(i)) make_of_expert(base.split.value(), a, b);
        if (may_be_left_out(i)) {
            const auto next = static_cast<WeightId>(made_.slots.list().size());
            a.left_out_with = static_cast<WeightId>(raw(next) + 1);
            b.left_out_with = next;
        }
        slots_[i].made = made_.modules.size();
        made_.modules.push_back(
            {.base = slots_[i].adaptable->weight,
             .a = made_.slots.add(std::move(a)),
             .b = made_.slots.add(std::move(b)),
             .rank = module.rank,
             .scale = static_cast<float>(module.scale)}
        );
    }

    // Adds the two tensors that PEFT has for a pack. Of two packs in one block of experts, the one
    // of gate and up is wrapped first, and is the inner one.
    void add_packs(const WeightSlots::Pack& pack) {
        const std::size_t dot = pack.name.rfind('.');
        std::string path = pack.name.substr(0, dot);
        const bool is_inner = pack.name.ends_with(".gate_up_proj") &&
                              std::ranges::any_of(packs_, [&](const WeightSlots::Pack* other) {
                                  return other->name == path + ".down_proj";
                              });
        if (is_inner) path += ".base_layer";
        const AdaptedModule& first = made_.modules[slots_[index_of(pack.slots.front())].made];
        const bool is_of_experts = pack.shape.size() == 3;
        const std::int64_t E = is_of_experts ? pack.shape[0] : 1;
        const std::int64_t r = first.rank;
        const std::int64_t in = base_.list()[index_of(first.base)].shape[1];
        const std::int64_t out = pack.shape[is_of_experts ? 1 : 0];
        WeightSlots::Pack a{.name = path + ".lora_A.weight", .shape = {E * r, in}};
        WeightSlots::Pack b{.name = path + ".lora_B.weight", .shape = {out, r * E}};
        const std::int64_t per_expert = std::ssize(pack.slots) / E;
        for (std::int64_t i = 0; i < std::ssize(pack.slots); ++i) {
            const WeightId slot = pack.slots[static_cast<std::size_t>(i)];
            const AdaptedModule& module = made_.modules[slots_[index_of(slot)].made];
            const std::int64_t e = i / per_expert;
            const std::int64_t row = i % per_expert * base_.list()[index_of(slot)].shape[0];
            a.slots.push_back(module.a);
            a.strides.push_back({.begin = e * r * in, .per_row = in});
            b.slots.push_back(module.b);
            b.strides.push_back({.begin = row * r * E + e, .per_row = r * E, .per_col = E});
        }
        if (pack.slots.size() == 1) {  // both are plain matrices
            a.strides.clear();
            b.strides.clear();
        }
        made_.slots.pack(std::move(a));
        made_.slots.pack(std::move(b));
    }

    Result<> check();

    const WeightSlots& base_;
    ModuleSearch& search_;
    const AdapterConfig& config_;
    std::int64_t rank_max_;
    std::vector<OfSlot> slots_;                      // of the base
    std::vector<const WeightSlots::Pack*> packs_{};  // of the base: adapted parameters
    AdapterSlots made_{};
    std::vector<std::string> not_served_{};
    std::vector<std::string> too_high_{};
};

// Returns what is wrong with the modules that were found.
Result<> SlotsMaker::check() {
    // PEFT's "all-linear" leaves heads and embeddings out.
    if (!config_.is_of_all_linear() && !not_served_.empty()) {
        return make_error(
            ErrorCode::kUnsupported,
            "adapters of {} are not served; accepted are modules of attention, of linear_attn's "
            "projections, of dense MLPs, of experts, of shared experts and their gates, and of "
            "routers",
            shown(std::move(not_served_))
        );
    }
    if (!too_high_.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the rank of {} is over {}, the limit of this tree (--max-adapter-rank)",
            shown(std::move(too_high_)),
            rank_max_
        );
    }
    if (made_.modules.empty()) {
        return Error{
            ErrorCode::kInvalidArgument,
            "the adapter adapts no module of this model: none matches its target_modules or "
            "target_parameters"};
    }
    return Ok{};
}

}  // namespace

Result<AdapterSlots> AdapterSlots::make(
    const WeightSlots& base,
    std::span<const AdaptableWeight> adaptable,
    ModuleSearch& search,
    std::int64_t rank_max
) {
    return SlotsMaker(base, adaptable, search, rank_max).make();
}

}  // namespace pitstop::tp_worker
