#include "tp_worker/config/adapter_config.h"

#include "base/json_reader.h"
#include "tp_worker/config/config_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kAdapterRankMax = 1 << 16;  // of the file; the worker's limit is lower
constexpr std::size_t kAdapterValuesMax = 1 << 16;
constexpr std::size_t kAdapterNamesMax = 4096;
constexpr std::size_t kAdapterDepthMax = 16;

// Keys that describe an adapter's origin, or matter only in training.
constexpr std::array kAdapterOfNoEffect{
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",  // for the initialisation named by init_lora_weights
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "lora_dropout",
    "lora_ga_config",
    "loftq_config",
    "megatron_core",
    "qalora_group_size",  // only for use_qalora
    "revision",
    "task_type",
    "runtime_config"};
// Keys for which null, false and empty mean the supported behaviour.
constexpr std::array kAdapterHonoured{
    "alpha_pattern",
    "bias",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "peft_type",
    "peft_version",
    "r",
    "rank_pattern",
    "target_modules",
    "target_parameters",
    "use_rslora"};

template <std::size_t N>
bool has(const std::array<const char*, N>& keys, std::string_view key) {
    return std::ranges::find(keys, key) != keys.end();
}

bool is_unset(const Json& value) {
    return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
           ((value.is_array() || value.is_object()) && value.empty());
}

// Whether PEFT of this version derives the sides of a packed parameter [E, out, in] as out and in.
bool has_sides_in_order(std::string_view version) {
    constexpr std::array kFirst{0, 19, 1};
    std::array<int, 3> numbers{};
    const char* at = version.data();
    const char* const end = at + version.size();
    for (int& number : numbers) {
        const auto [next, problem] = std::from_chars(at, end, number);
        if (problem != std::errc()) break;
        at = next;
        if (at == end || *at != '.') break;
        ++at;
    }
    if (numbers != kFirst) return numbers > kFirst;
    return version == "0.19.1";  // and not a version that was being developed before it
}

}  // namespace

// Collects all problems; an invalid pattern ends the reading at once.
class AdapterConfigReader {
  public:
    AdapterConfigReader(const Json& json, ConfigProblems* problems)
        : json_(json), reader_(json, "", problems) {}

    Result<> read(std::string_view text, AdapterConfig* config) {
        refuse_what_is_not_computed();
        config->rank_ = reader_.whole("r", 8, kAdapterRankMax);
        config->alpha_ = reader_.positive("lora_alpha", 8.0);
        config->is_rank_stabilized_ = reader_.flag("use_rslora", false);
        RETURN_IF_ERROR(read_names("target_modules", &config->targets_));
        RETURN_IF_ERROR(read_names("exclude_modules", &config->excluded_));
        const Json* const parameters = reader_.find_value("target_parameters");
        const bool has_parameters = parameters != nullptr && !is_unset(*parameters);
        if (has_parameters)
            config->parameters_ = read_list("target_parameters", *parameters, "a list");
        if (reader_.find_value("target_modules") == nullptr && !has_parameters)
            reader_.malformed("target_modules is missing");
        const Json* const version = reader_.find_value("peft_version");
        if (version != nullptr && version->is_string())
            config->has_sides_in_order_ = has_sides_in_order(version->get<std::string>());
        read_layers(config);
        RETURN_IF_ERROR(read_layer_patterns(config));
        // PEFT uses the first of several matching patterns, but json_ has its keys sorted. So the
        // text is parsed again, in its own order.
        const auto ordered =
            nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
        RETURN_IF_ERROR(read_patterns("rank_pattern", ordered, &config->ranks_));
        RETURN_IF_ERROR(read_patterns("alpha_pattern", ordered, &config->alphas_));
        return Ok{};
    }

  private:
    void refuse_what_is_not_computed() {
        for (const auto& [key, value] : json_.items()) {
            if (has(kAdapterOfNoEffect, key) || has(kAdapterHonoured, key)) continue;
            if (is_unset(value)) continue;  // unknown keys, too
            reader_.unsupported(
                "{} is {}; accepted is null or false", key, ConfigReader::shown(value)
            );
        }
        const std::string type = reader_.text("peft_type", "LORA");
        if (type != "LORA") reader_.unsupported("peft_type '{}'; accepted is LORA", type);
        const std::string bias = reader_.text("bias", "none");
        if (bias != "none") reader_.unsupported("bias '{}'; accepted is none", bias);
        const Json* const init = reader_.find_value("init_lora_weights");
        if (init == nullptr || init->is_boolean()) return;
        // Initialisations that change the base's weights: their adapters do not fit the
        // serving base model.
        constexpr std::array kOfBase{"pissa", "olora", "corda", "loftq", "lora_ga"};
        const std::string name = init->is_string() ? init->get<std::string>() : "";
        const bool changes_base = std::ranges::any_of(kOfBase, [&](std::string_view each) {
            return name.starts_with(each);
        });
        if (!init->is_string()) {
            reader_.malformed(
                "init_lora_weights must be true, false or a name, not {}",
                ConfigReader::shown(*init)
            );
        } else if (changes_base) {
            reader_.unsupported(
                "init_lora_weights '{}' changes the base model's weights; convert the adapter "
                "(PEFT: save_pretrained with path_initial_model_for_weight_conversion)",
                name
            );
        }
    }

    // `accepted`: the forms that the key has, for the message.
    [[nodiscard]] std::vector<std::string> read_list(
        const char* key, const Json& value, const char* accepted
    ) {
        std::vector<std::string> list;
        const bool is_list =
            value.is_array() && value.size() <= kAdapterNamesMax &&
            std::ranges::all_of(value, [](const Json& each) { return each.is_string(); });
        if (!is_list) {
            reader_.malformed(
                "{} must be {} of at most {} names, not {}",
                key,
                accepted,
                kAdapterNamesMax,
                ConfigReader::shown(value)
            );
            return list;
        }
        for (const Json& each : value) list.push_back(each.get<std::string>());
        return list;
    }

    Result<> read_names(const char* key, AdapterConfig::Names* names) {
        const Json* const value = reader_.find_value(key);
        if (value == nullptr) return Ok{};
        if (!value->is_string()) {
            names->list = read_list(key, *value, "a pattern or a list");
            return Ok{};
        }
        auto text = value->get<std::string>();
        if (text == "all-linear") {
            names->is_all_linear = true;
            return Ok{};
        }
        ASSIGN_OR_RETURN(names->pattern, compile(key, std::move(text)));
        return Ok{};
    }

    void read_layers(AdapterConfig* config) {
        const Json* const value = reader_.find_value("layers_to_transform");
        if (value == nullptr || (value->is_array() && value->empty())) return;
        std::vector<std::int64_t> layers;
        for (const Json& each : value->is_array() ? *value : Json::array({*value})) {
            if (!each.is_number_integer()) {
                return reader_.malformed(
                    "layers_to_transform must be a layer or a list of layers, not {}",
                    ConfigReader::shown(*value)
                );
            }
            layers.push_back(each.get<std::int64_t>());
        }
        config->layers_ = std::move(layers);
    }

    Result<> read_layer_patterns(AdapterConfig* config) {
        const Json* const value = reader_.find_value("layers_pattern");
        std::vector<std::string> names;
        if (value != nullptr && value->is_string() && !value->get<std::string>().empty()) {
            names.push_back(value->get<std::string>());
        } else if (value != nullptr && !value->is_string()) {
            names = read_list("layers_pattern", *value, "a name or a list");
        }
        if (names.empty()) {
            ASSIGN_OR_RETURN(
                ModulePattern any, ModulePattern::compile(R"(.*?\.[^.]*\.(?<layer>\d+)\.)")
            );
            config->layer_patterns_.push_back(std::move(any));
        }
        for (const std::string& name : names) {
            ASSIGN_OR_RETURN(
                ModulePattern pattern,
                compile(
                    "layers_pattern", fmt::format(R"((?:^|.*?\.)(?:{})\.(?<layer>\d+)\.)", name)
                )
            );
            config->layer_patterns_.push_back(std::move(pattern));
        }
        return Ok{};
    }

    template <class T>
    Result<> read_patterns(
        const char* key, const nlohmann::ordered_json& ordered, AdapterConfig::Patterns<T>* patterns
    ) {
        const Json* const value = reader_.find_value(key);
        if (value == nullptr) return Ok{};
        if (!value->is_object() || value->size() > kAdapterNamesMax) {
            reader_.malformed(
                "{} must be an object of at most {} patterns, not {}",
                key,
                kAdapterNamesMax,
                ConfigReader::shown(*value)
            );
            return Ok{};
        }
        for (const auto& [name, each] : ordered.at(key).items()) {
            const double number = each.is_number() ? each.template get<double>() : 0.0;
            const bool is_whole = std::is_same_v<T, double> || each.is_number_integer();
            if (!is_whole || !(number > 0.0) || number > kAdapterRankMax) {
                reader_.malformed(
                    "{} of '{}' is {}; accepted is {} above 0, at most {}",
                    key,
                    name,
                    ConfigReader::shown(each),
                    std::is_same_v<T, double> ? "a number" : "an integer",
                    kAdapterRankMax
                );
                continue;
            }
            ASSIGN_OR_RETURN(
                ModulePattern pattern, compile(key, fmt::format(R"((?:.*\.)?(?:{}))", name))
            );
            patterns->push_back(
                {.key = name, .pattern = std::move(pattern), .value = static_cast<T>(number)}
            );
        }
        return Ok{};
    }

    static Result<ModulePattern> compile(const char* key, std::string text) {
        Result<ModulePattern> pattern = ModulePattern::compile(std::move(text));
        if (pattern) return pattern;
        return make_error(pattern.error().code, "{}: {}", key, pattern.error().message);
    }

    const Json& json_;
    ConfigReader reader_;
};

Result<AdapterConfig> AdapterConfig::parse(std::string_view json, const std::string& where) {
    ASSIGN_OR_RETURN(
        const Json tree,
        read_json_tree(
            json, fmt::format("'{}': ", where), {.depth_max = kAdapterDepthMax}, kAdapterValuesMax
        )
    );
    ConfigProblems problems;
    AdapterConfig config;
    AdapterConfigReader reader(tree, &problems);
    if (const Result<> read = reader.read(json, &config); !read)
        return make_error(read.error().code, "'{}': {}", where, read.error().message);
    if (!problems.list.empty()) {
        return make_error(
            problems.any_unsupported ? ErrorCode::kUnsupported : ErrorCode::kMalformed,
            "'{}': {}",
            where,
            fmt::join(problems.list, "; ")
        );
    }
    return config;
}

}  // namespace pitstop::tp_worker
