// Reads the description of an adapter from PEFT's adapter_config.json: the names and patterns of
// its modules, ranks and scales, by which a ModuleSearch finds them. A key that would change the
// result and is not supported is refused by name, never ignored.
//
// Source: PEFT 0.21: LoraConfig.
#pragma once

#include "base/result.h"
#include "tp_worker/config/module_pattern.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr std::size_t kAdapterConfigBytesMax = std::size_t{1} << 20;

class AdapterConfig {
  public:
    // `where`, the file or the call, precedes the messages. Errors: kMalformed; kUnsupported,
    // naming the keys; kInvalidArgument for an invalid pattern.
    static Result<AdapterConfig> parse(std::string_view json, const std::string& where);

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
    struct Pattern {
        std::string key{};  // as in the file
        ModulePattern pattern;
        T value{};
    };
    template <class T>
    using Patterns = std::vector<Pattern<T>>;

    AdapterConfig() = default;
    friend class AdapterConfigReader;
    friend class ModuleSearch;  // finds the modules (module_search.h)

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
