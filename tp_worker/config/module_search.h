// Finds the modules of one model that a configuration adapts, by its names and patterns.
//
// Source: PEFT 0.21: check_target_module_exists and get_pattern_key; the scale is that of
// peft.tuners.lora.layer.
//
// Thread:  one at a time.
// Bounded: MatchSteps, over all calls.
#pragma once

#include "base/result.h"
#include "tp_worker/config/adapter_config.h"
#include "tp_worker/config/match_steps.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

// The form of a model's paths. A text model may be part of a model with vision, which has
// "model.language_model." for "model.": then the names and patterns may be of either form.
enum class ModulePaths : std::uint8_t { kOwn, kOwnOrOfVision };

class ModuleSearch {
  public:
    // `config` outlives the search.
    explicit ModuleSearch(
        const AdapterConfig& config,
        ModulePaths paths = ModulePaths::kOwn,
        MatchSteps steps = MatchSteps()
    );

    struct Module {
        std::int64_t rank = 0;
        double scale = 0;  // multiplies B (A x)
    };
    // Returns how the module of this path is adapted; nothing if it is not. Errors: those of
    // ModulePattern and MatchSteps.
    [[nodiscard]] Result<std::optional<Module>> of(const std::string& path);
    // The same for a parameter that is adapted by its own name (target_parameters), such as the
    // packed matrices of all experts.
    [[nodiscard]] Result<std::optional<Module>> of_parameter(const std::string& name);

    [[nodiscard]] const AdapterConfig& config() const { return config_; }
    // Returns the keys of rank_pattern and alpha_pattern that decided about no module so far.
    [[nodiscard]] std::vector<std::string> idle_patterns() const;

  private:
    using Forms = std::span<const std::string>;
    [[nodiscard]] std::vector<std::string> forms_of(const std::string& path) const;
    [[nodiscard]] Result<bool> is_listed(const std::vector<std::string>& list, Forms forms);
    [[nodiscard]] Result<bool> matches(const AdapterConfig::Names& names, Forms forms);
    [[nodiscard]] Result<bool> is_in_layers(Forms forms);
    // By the patterns of ranks and alphas.
    [[nodiscard]] Result<Module> module_of(Forms forms);
    template <class T>
    [[nodiscard]] Result<std::optional<std::size_t>> first_of(
        const AdapterConfig::Patterns<T>& patterns, Forms forms
    );

    const AdapterConfig& config_;
    ModulePaths paths_;
    MatchSteps steps_;
    std::vector<bool> used_ranks_;  // by pattern
    std::vector<bool> used_alphas_;
};

}  // namespace pitstop::tp_worker
