#include "tp_worker/config/module_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

namespace pitstop::tp_worker {
namespace {

constexpr std::string_view kOwn = "model.";
constexpr std::string_view kOfVision = "model.language_model.";

// Whether the path is the name, or ends with it after a dot.
bool ends_with_name(std::string_view path, std::string_view name) {
    if (!path.ends_with(name)) return false;
    return path.size() == name.size() || path[path.size() - name.size() - 1] == '.';
}

}  // namespace

ModuleSearch::ModuleSearch(const AdapterConfig& config, ModulePaths paths, MatchSteps steps)
    : config_(config),
      paths_(paths),
      steps_(steps),
      used_ranks_(config.ranks_.size()),
      used_alphas_(config.alphas_.size()) {}

std::vector<std::string> ModuleSearch::forms_of(const std::string& path) const {
    std::vector<std::string> forms{path};
    if (paths_ == ModulePaths::kOwnOrOfVision && path.starts_with(kOwn))
        forms.push_back(fmt::format("{}{}", kOfVision, path.substr(kOwn.size())));
    return forms;
}

// Returns whether a name of the list is the path, or its end.
Result<bool> ModuleSearch::is_listed(const std::vector<std::string>& list, Forms forms) {
    for (const std::string& path : forms) {
        RETURN_IF_ERROR(steps_.take(std::ssize(list)));
        const bool is_in = std::ranges::any_of(list, [&](const std::string& name) {
            return ends_with_name(path, name);
        });
        if (is_in) return true;
    }
    return false;
}

Result<bool> ModuleSearch::matches(const AdapterConfig::Names& names, Forms forms) {
    if (names.is_all_linear) return true;
    if (!names.pattern) return is_listed(names.list, forms);
    for (const std::string& path : forms) {
        ASSIGN_OR_RETURN(const bool is_match, names.pattern->matches_whole(path, steps_));
        if (is_match) return true;
    }
    return false;
}

Result<bool> ModuleSearch::is_in_layers(Forms forms) {
    if (!config_.layers_) return true;
    for (const ModulePattern& pattern : config_.layer_patterns_) {
        for (const std::string& path : forms) {
            ASSIGN_OR_RETURN(
                const std::optional<std::string> group, pattern.group(path, "layer", steps_)
            );
            if (!group) continue;
            std::int64_t layer = -1;
            std::from_chars(group->data(), group->data() + group->size(), layer);
            return std::ranges::find(*config_.layers_, layer) != config_.layers_->end();
        }
    }
    return false;
}

Result<std::optional<ModuleSearch::Module>> ModuleSearch::of(const std::string& path) {
    using Found = std::optional<Module>;
    const std::vector<std::string> forms = forms_of(path);
    const AdapterConfig::Names& targets = config_.targets_;
    ASSIGN_OR_RETURN(const bool is_excluded, matches(config_.excluded_, forms));
    if (is_excluded) return Found();
    ASSIGN_OR_RETURN(const bool is_target, matches(targets, forms));
    if (!is_target) return Found();
    // A whole path, or a pattern over whole paths, already selects layers.
    const bool is_by_suffix = !targets.pattern && !targets.is_all_linear &&
                              std::ranges::find_first_of(targets.list, forms) == targets.list.end();
    if (is_by_suffix) {
        ASSIGN_OR_RETURN(const bool is_in, is_in_layers(forms));
        if (!is_in) return Found();
    }
    ASSIGN_OR_RETURN(const Module module, module_of(forms));
    return Found(module);
}

Result<std::optional<ModuleSearch::Module>> ModuleSearch::of_parameter(const std::string& name) {
    using Found = std::optional<Module>;
    const std::vector<std::string> forms = forms_of(name);
    ASSIGN_OR_RETURN(const bool is_target, is_listed(config_.parameters_, forms));
    if (!is_target) return Found();
    ASSIGN_OR_RETURN(const Module module, module_of(forms));
    return Found(module);
}

// Returns the index of the first pattern that matches; nothing if none does.
template <class T>
Result<std::optional<std::size_t>> ModuleSearch::first_of(
    const AdapterConfig::Patterns<T>& patterns, Forms forms
) {
    using Found = std::optional<std::size_t>;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
        for (const std::string& path : forms) {
            ASSIGN_OR_RETURN(const bool is_its, patterns[i].pattern.matches_whole(path, steps_));
            if (is_its) return Found(i);
        }
    }
    return Found();
}

Result<ModuleSearch::Module> ModuleSearch::module_of(Forms forms) {
    Module module{.rank = config_.rank_};
    double alpha = config_.alpha_;
    ASSIGN_OR_RETURN(const auto of_rank, first_of(config_.ranks_, forms));
    if (of_rank) {
        module.rank = config_.ranks_[*of_rank].value;
        used_ranks_[*of_rank] = true;
    }
    ASSIGN_OR_RETURN(const auto of_alpha, first_of(config_.alphas_, forms));
    if (of_alpha) {
        alpha = config_.alphas_[*of_alpha].value;
        used_alphas_[*of_alpha] = true;
    }
    const auto rank = static_cast<double>(module.rank);
    module.scale = alpha / (config_.is_rank_stabilized_ ? std::sqrt(rank) : rank);
    return module;
}

std::vector<std::string> ModuleSearch::idle_patterns() const {
    std::vector<std::string> idle;
    for (std::size_t i = 0; i < used_ranks_.size(); ++i) {
        if (!used_ranks_[i])
            idle.push_back(fmt::format("rank_pattern '{}'", config_.ranks_[i].key));
    }
    for (std::size_t i = 0; i < used_alphas_.size(); ++i) {
        if (!used_alphas_[i])
            idle.push_back(fmt::format("alpha_pattern '{}'", config_.alphas_[i].key));
    }
    return idle;
}

}  // namespace pitstop::tp_worker
