// Reads the description of an adapter from PEFT's adapter_config.json: its modules, ranks
// and scales. A key that would change the result and is not supported is refused by name,
// never ignored.
//
// Source: PEFT 0.21: LoraConfig, check_target_module_exists and get_pattern_key; the scale is that
// of peft.tuners.lora.layer.
#pragma once

#include "base/result.h"
#include "tp_worker/config/module_pattern.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr std::size_t kAdapterConfigBytesMax = std::size_t{1} << 20;

class AdapterConfig {
  public:
    // `where`, the file or the call, precedes the messages. Errors: kMalformed; kUnsupported,
    // naming the keys; kInvalidArgument for an invalid pattern.
    static Result<AdapterConfig> parse(std::string_view json, const std::string& where);

    struct Module {
        std::int64_t rank = 0;
        double scale = 0;  // multiplies B (A x)
    };
    // Returns how the module of this path is adapted; nothing if it is not. Errors:
    // kResourceExhausted if a pattern needs too many steps.
    [[nodiscard]] Result<std::optional<Module>> of(const std::string& path) const;
    // The same for a parameter that is adapted by its own name (target_parameters), such as the
    // packed matrices of all experts.
    [[nodiscard]] Result<std::optional<Module>> of_parameter(const std::string& name) const;
    [[nodiscard]] bool has_parameters() const { return !parameters_.empty(); }
    // Whether A and B of a packed parameter [E, out, in] are surely [.., in] and [out, ..]. PEFT
    // before 0.19.1 has them swapped.
    [[nodiscard]] bool has_sides_in_order() const { return has_sides_in_order_; }
    // Whether the modules are still given as PEFT's "all-linear", which a checkpoint must resolve.
    [[nodiscard]] bool is_of_all_linear() const { return targets_.is_all_linear; }

  private:
    // Names of modules, or one pattern over whole paths.
    struct Names {
        std::vector<std::string> list{};
        std::optional<ModulePattern> pattern{};
        bool is_all_linear = false;  // PEFT's word for all linear layers except the head
    };
    template <class T>
    using Patterns = std::vector<std::pair<ModulePattern, T>>;

    AdapterConfig() = default;
    friend class AdapterConfigReader;
    [[nodiscard]] static Result<bool> matches(const Names& names, const std::string& path);
    [[nodiscard]] Result<bool> is_in_layers(const std::string& path) const;
    // By the patterns of ranks and alphas.
    [[nodiscard]] Result<Module> module_of(const std::string& name) const;

    std::int64_t rank_ = 8;
    double alpha_ = 8;
    bool is_rank_stabilized_ = false;
    bool has_sides_in_order_ = false;
    Names targets_{};
    Names excluded_{};
    std::vector<std::string> parameters_{};  // names, or the ends of names
    Patterns<std::int64_t> ranks_{};         // the first match counts
    Patterns<double> alphas_{};
    std::optional<std::vector<std::int64_t>> layers_{};
    std::vector<ModulePattern> layer_patterns_{};  // the group "layer" is the layer's number
};

}  // namespace pitstop::tp_worker
