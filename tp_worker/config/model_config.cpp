#include "tp_worker/config/model_config.h"

#include "base/json_reader.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "tp_worker/config/config_reader.h"
#include "tp_worker/config/families.h"
#include "tp_worker/config/hybrid_config.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <sys/stat.h>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;

// The limits are far above any model of these families, and small enough that no product of two
// sizes and a layer count overflows.
constexpr std::int64_t kSizeMax = 1 << 20;  // hidden, ffn, heads, head_dim
constexpr std::int64_t kLayersMax = 1024;
constexpr std::int64_t kVocabMax = 1 << 22;
constexpr std::int64_t kContextMax = 1 << 24;
constexpr std::size_t kEosMax = 64;
constexpr std::size_t kNameShownMax = 256;  // bytes of an unknown name in an error
// The deepest nesting of config.json: copying or printing a value recurses.
constexpr std::size_t kDepthMax = 32;
constexpr std::size_t kConfigValuesMax = 200'000;
constexpr std::int64_t kHeadDimMax = 256;  // the limit of attention (kernels/attention.h)

// transformers uses model_type, SGLang and vLLM use architectures: they must agree.
const Family* read_family(ConfigReader& reader) {
    std::string architecture;
    if (const Json* list = reader.find_value("architectures"); list != nullptr && !list->empty()) {
        if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
            reader.malformed("architectures must name one architecture");
            return nullptr;
        }
        architecture = list->front().get<std::string>();
    }
    const std::string model_type = reader.text("model_type", "");
    const Family* by_architecture = nullptr;
    const Family* by_type = nullptr;
    std::vector<std::string_view> known;
    std::vector<std::string_view> known_types;
    for (const Family& family : families()) {
        for (const auto& [name, type] :
             {std::pair(family.architecture, family.model_type),
              {family.text_architecture, family.text_type}}) {
            if (type.empty()) continue;
            known.push_back(name);
            known_types.push_back(type);
            if (architecture == name) by_architecture = &family;
            if (model_type == type) by_type = &family;
        }
    }
    const Family* const named = architecture.empty() ? by_type : by_architecture;
    if (named == nullptr) {
        reader.unsupported(
            "{} '{}' is not supported; supported are {}",
            architecture.empty() ? "model_type" : "architectures",
            utf8_prefix(architecture.empty() ? model_type : architecture, kNameShownMax),
            fmt::join(architecture.empty() ? known_types : known, ", ")
        );
        return nullptr;
    }
    if (!architecture.empty() && !model_type.empty() && by_architecture != by_type) {
        reader.malformed(
            "architectures says {}, model_type says '{}': one of them is wrong",
            architecture,
            utf8_prefix(model_type, kNameShownMax)
        );
        return nullptr;
    }
    return named;
}

// Returns the method, " by awq"; empty if the file does not name it.
std::string quantization_method(const ConfigReader& reader) {
    const Json* settings = reader.find_value("quantization_config");
    if (settings == nullptr) settings = reader.find_value("compression_config");
    if (settings == nullptr || !settings->is_object()) return "";
    const auto method = settings->find("quant_method");
    if (method == settings->end() || !method->is_string()) return "";
    return fmt::format(" by {}", utf8_prefix(method->get_ref<const std::string&>(), kNameShownMax));
}

// Refuses settings that change the arithmetic and are not implemented, unless their
// value means "off".
void refuse_unsupported(ConfigReader& reader, const Family& family) {
    const std::string act = reader.text("hidden_act", "silu");
    if (act != "silu" && act != "swish") {
        reader.unsupported(
            "hidden_act '{}'; only silu is supported", utf8_prefix(act, kNameShownMax)
        );
    }
    if (reader.find_value("quantization_config") != nullptr ||
        reader.find_value("compression_config") != nullptr) {
        reader.unsupported(
            "quantization_config{}: quantized checkpoints are not supported; serve the checkpoint "
            "that it was quantized from",
            quantization_method(reader)
        );
    }
    // A null is_causal does not mean "off": transformers treats null as false.
    if (const Json* causal = reader.find("is_causal"); causal != nullptr && *causal != true) {
        reader.unsupported(
            "is_causal {}; only causal attention is supported", ConfigReader::shown(*causal)
        );
    }
    constexpr std::string_view kRotaryFactor = "partial_rotary_factor";
    constexpr std::string_view kNumExperts = "num_experts";
    constexpr std::string_view kNumLocalExperts = "num_local_experts";
    struct Setting {
        std::string_view key;
        double off;
    };
    constexpr std::array<Setting, 11> kSettings{{
        {kRotaryFactor, 1.0},
        {"attn_logit_softcapping", 0.0},
        {"final_logit_softcapping", 0.0},
        {"attention_multiplier", 0.0},
        {"residual_multiplier", 1.0},
        {"embedding_multiplier", 1.0},
        {"logits_scaling", 1.0},
        {"logit_scale", 1.0},
        {kNumExperts, 0.0},
        {kNumLocalExperts, 0.0},
        {"query_pre_attn_scalar", 0.0},
    }};
    for (const Setting& setting : kSettings) {
        const bool is_of_experts = setting.key == kNumExperts || setting.key == kNumLocalExperts;
        if (is_of_experts && family.read_experts != nullptr) continue;
        if (setting.key == kRotaryFactor && family.absent_rotary_factor) continue;
        const Json* value = reader.find_value(setting.key.data());
        if (value == nullptr || (value->is_number() && value->get<double>() == setting.off))
            continue;
        reader.unsupported("{} {} is not supported", setting.key, ConfigReader::shown(*value));
    }
}

using Window = std::optional<std::int64_t>;  // visible keys per token; empty: all

// Reads `sliding_window`, if the family has one. An absent key differs from null: null means no
// window.
Window read_window(ConfigReader& reader, const Family& family, std::int64_t max_positions) {
    constexpr std::int64_t kDefault = 4096;
    const bool has_none = family.window == Family::Window::kNone;
    const bool is_used = has_none || family.window == Family::Window::kOfAll ||
                         reader.flag("use_sliding_window", false);
    const Json* value = reader.find("sliding_window");
    if (value == nullptr)
        return is_used && !has_none && !family.has_null_window ? Window(kDefault) : Window();
    if (value->is_null()) return std::nullopt;
    const std::int64_t window = reader.any_whole("sliding_window", kDefault);
    if (!is_used) return std::nullopt;
    if (has_none) {
        // For these families, transformers applies a window to the cache, though not in the model.
        if (window < max_positions) {
            reader.unsupported(
                "sliding_window {}: '{}' attends to all positions", window, family.model_type
            );
        }
        return std::nullopt;
    }
    if (window < 1) reader.malformed("sliding_window must be at least 1, not {}", window);
    return std::clamp<std::int64_t>(window, 1, kContextMax);
}

// Returns which layers have a window, as in transformers: all, or those from max_window_layers on;
// `layer_types` overrides both.
std::vector<Window> read_windows(
    ConfigReader& reader,
    const Family& family,
    const ModelConfig& config,
    std::int64_t max_positions
) {
    constexpr std::int64_t kFullLayersDefault = 28;
    const Window window = read_window(reader, family, max_positions);
    const bool is_alternate = family.window == Family::Window::kAlternateIfAsked;
    std::int64_t begin = 0;
    std::int64_t end = config.num_layers;
    if (family.window == Family::Window::kIfAsked)
        begin =
            std::max<std::int64_t>(reader.any_whole("max_window_layers", kFullLayersDefault), 0);
    if (is_alternate)
        end = std::min(reader.any_whole("max_window_layers", kFullLayersDefault), end);
    std::vector<Window> windows(static_cast<std::size_t>(config.num_layers));
    for (std::int64_t layer = begin; layer < end; layer += is_alternate ? 2 : 1)
        windows[static_cast<std::size_t>(layer)] = window;

    const Json* types = reader.find_value("layer_types");
    if (types == nullptr || family.is_hybrid) return windows;
    if (!types->is_array() || types->size() != windows.size()) {
        reader.malformed("layer_types must have {} entries", windows.size());
        return windows;
    }
    for (std::size_t layer = 0; layer < windows.size(); ++layer) {
        const Json& type = (*types)[layer];
        const bool is_full = type == "full_attention" || type == "attention";  // the older name
        if (!family.reads_layer_types && is_full == windows[layer].has_value()) {
            reader.unsupported(
                "layer_types: {} for layer {}, which is not what its sliding_window says",
                ConfigReader::shown(type),
                layer
            );
            break;
        }
        if (is_full) {
            windows[layer].reset();
        } else if (type == "sliding_attention" && window) {
            windows[layer] = window;
        } else {
            reader.unsupported(
                "layer_types: {} for layer {}; known are full_attention and, with a sliding_window "
                "(Qwen: and use_sliding_window), sliding_attention",
                ConfigReader::shown(type),
                layer
            );
            break;
        }
    }
    return windows;
}

// An absent key has the default of transformers' config class; null means as many as query
// heads.
std::int64_t read_kv_heads(ConfigReader& reader, const Family& family, const ModelConfig& config) {
    constexpr const char* kKey = "num_key_value_heads";
    const Json* value = reader.find(kKey);
    const bool is_null = value != nullptr && value->is_null();
    if (is_null && family.has_null_kv_heads) return config.num_q_heads;
    return reader.whole(kKey, family.absent_kv_heads.value_or(config.num_q_heads), kSizeMax);
}

std::int64_t read_head_dim(ConfigReader& reader, const Family& family, const ModelConfig& config) {
    const Json* value = reader.find("head_dim");
    if (value != nullptr && !value->is_null()) return reader.whole("head_dim", 1, 1 << 16);
    if (value == nullptr && family.absent_head_dim) return *family.absent_head_dim;
    if (family.needs_whole_head_dim && config.hidden % config.num_q_heads != 0) {
        reader.malformed(
            "hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim",
            config.hidden,
            config.num_q_heads
        );
    }
    return std::max<std::int64_t>(config.hidden / config.num_q_heads, 1);
}

void read_shape(ConfigReader& reader, const Family& family, ModelConfig* config) {
    config->hidden = reader.whole("hidden_size", std::nullopt, kSizeMax);
    if (family.has_ffn) config->ffn = reader.whole("intermediate_size", std::nullopt, kSizeMax);
    config->num_layers = reader.whole("num_hidden_layers", std::nullopt, kLayersMax);
    config->num_q_heads = reader.whole("num_attention_heads", std::nullopt, kSizeMax);
    config->num_kv_heads = read_kv_heads(reader, family, *config);
    config->vocab_len = reader.whole("vocab_size", std::nullopt, kVocabMax);
    config->norm_eps = reader.positive("rms_norm_eps", family.absent_norm_eps);
    config->head_dim = read_head_dim(reader, family, *config);

    if (config->num_q_heads % config->num_kv_heads != 0) {
        reader.malformed(
            "num_attention_heads {} is not a multiple of num_key_value_heads {}",
            config->num_q_heads,
            config->num_kv_heads
        );
    }
    if (config->head_dim > kHeadDimMax) {
        reader.unsupported("head_dim {}; at most {} is supported", config->head_dim, kHeadDimMax);
    }
    if (config->head_dim % 2 != 0)
        reader.unsupported("head_dim {}: rotary embedding needs an even one", config->head_dim);
    if (config->num_q_heads * config->head_dim > kSizeMax)
        reader.malformed("num_attention_heads * head_dim is over {}", kSizeMax);
}

void read_biases(ConfigReader& reader, const Family& family, ModelConfig* config) {
    config->qkv_bias = family.qkv_bias == Family::QkvBias::kAlways;
    if (family.qkv_bias == Family::QkvBias::kByKey) {
        config->qkv_bias = reader.flag("attention_bias", false);
        config->o_bias = config->qkv_bias;
    }
    if (family.qkv_bias == Family::QkvBias::kByOwnKey)
        config->qkv_bias = reader.flag("qkv_bias", true);
    if (family.has_mlp_bias) config->mlp_bias = reader.flag("mlp_bias", false);
}

void check_rotary_len(ConfigReader& reader, const ModelConfig& config) {
    const std::int64_t len = rotary_len(config.rope, config.head_dim);
    if ((len >= 2 && len % 2 == 0) || config.rope.rotary_factor == 1.0) return;
    reader.unsupported(
        "partial_rotary_factor {} of head_dim {} rotates {} elements; an even number is needed",
        config.rope.rotary_factor,
        config.head_dim,
        len
    );
}

void read_eos(ConfigReader& reader, std::int64_t vocab_len, std::set<TokenId>* ids) {
    const Json* value = reader.find_value("eos_token_id");
    if (value == nullptr) return;
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& id : list) {
        if (!id.is_number_integer() || id < 0 || id >= vocab_len || ids->size() == kEosMax) {
            reader.malformed(
                "eos_token_id must be token ids below {}, at most {}, not {}",
                vocab_len,
                kEosMax,
                ConfigReader::shown(*value)
            );
            return;
        }
        ids->insert(static_cast<TokenId>(id.get<std::int32_t>()));
    }
}

Result<Json> parse_object(std::string_view text, const std::string& path) {
    return read_json_tree(
        text, fmt::format("'{}': ", path), {.depth_max = kDepthMax}, kConfigValuesMax
    );
}

Error error_of(const ConfigProblems& problems, const std::string& path) {
    return make_error(
        problems.any_unsupported ? ErrorCode::kUnsupported : ErrorCode::kMalformed,
        "'{}': {}",
        path,
        fmt::join(problems.list, "; ")
    );
}

}  // namespace

Result<ModelConfig> ModelConfig::parse(
    std::string_view config_text, std::string_view generation_text, const std::string& directory
) {
    const std::string path = directory + "/config.json";
    const std::string generation_path = directory + "/generation_config.json";
    ASSIGN_OR_RETURN(const Json json, parse_object(config_text, path));
    Json generation = Json::object();
    if (!generation_text.empty()) {
        ASSIGN_OR_RETURN(generation, parse_object(generation_text, generation_path));
    }

    ConfigProblems problems;
    ConfigReader outer(json, "", &problems);
    ModelConfig config;
    const Family* const family = read_family(outer);
    if (family == nullptr) return error_of(problems, path);
    config.model_type = family->model_type;
    const Json* const text = find_text_config(json, *family, outer);
    if (text == nullptr) return error_of(problems, path);
    ConfigReader reader(*text, text == &json ? "" : "text_config: ", &problems);
    refuse_unsupported(reader, *family);
    if (text != &json) refuse_unsupported(outer, *family);
    read_shape(reader, *family, &config);
    read_biases(reader, *family, &config);
    if (family->read_experts != nullptr) family->read_experts(reader, &config);
    config.qk_norm = family->has_qk_norm;
    if (family->is_hybrid) read_hybrid(reader, *family, &config);
    config.tied_embeddings = read_tied_embeddings(outer, reader);
    const std::int64_t max_positions =
        reader.whole("max_position_embeddings", std::nullopt, kContextMax);
    config.windows = read_windows(reader, *family, config, max_positions);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
        config.layers.push_back(family->blocks_of(config, layer));
    config.rope = read_rope(
        reader,
        max_positions,
        &problems,
        &config.notes,
        {.theta = family->absent_rope_theta.value_or(kRopeTheta),
         .rotary_factor = family->absent_rotary_factor}
    );
    check_rotary_len(reader, config);
    config.context_len = scaled_context_len(config.rope, max_positions);
    if (config.context_len > kContextMax && problems.list.empty()) {
        reader.unsupported(
            "{} positions with rope factor {}; at most {} are supported",
            config.context_len,
            config.rope.factor,
            kContextMax
        );
    }

    std::set<TokenId> eos;
    read_eos(reader, config.vocab_len, &eos);
    if (text != &json) read_eos(outer, config.vocab_len, &eos);
    if (!problems.list.empty()) return error_of(problems, path);
    ConfigReader generation_reader(generation, "", &problems);
    read_eos(generation_reader, config.vocab_len, &eos);
    if (!problems.list.empty()) return error_of(problems, generation_path);
    config.eos_ids.assign(eos.begin(), eos.end());
    return config;
}

Result<ModelConfig> ModelConfig::read(const std::string& directory) {
    ASSIGN_OR_RETURN(
        const std::string config, MappedFile::read(directory + "/config.json", kConfigBytesMax)
    );
    const std::string generation_path = directory + "/generation_config.json";
    struct stat info {};
    std::string generation;
    if (::stat(generation_path.c_str(), &info) == 0) {
        ASSIGN_OR_RETURN(generation, MappedFile::read(generation_path, kConfigBytesMax));
        if (generation.empty()) generation = " ";  // empty file: invalid JSON, unlike no file
    }
    return parse(config, generation, directory);
}

}  // namespace pitstop::tp_worker
