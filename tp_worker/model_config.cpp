#include "tp_worker/model_config.h"

#include "base/mapped_file.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>
#include <sys/stat.h>

namespace pitstop {
namespace {

using Json = nlohmann::json;

// Far above any model of these families, and small enough that no product of two sizes and a
// layer count overflows.
constexpr std::int64_t kSizeMax = 1 << 20;  // hidden, ffn, heads, head_dim
constexpr std::int64_t kLayersMax = 1024;
constexpr std::int64_t kVocabMax = 1 << 22;
constexpr std::int64_t kContextMax = 1 << 24;
constexpr std::size_t kEosMax = 64;
constexpr int kDepthMax = 32;  // of config.json; what copies or shows a value does so by recursion
constexpr std::int64_t kHeadDimMax = 256;  // what attention takes (kernels/attention.h)

struct FamilyRow {
    std::string_view model_type;
    std::string_view architecture;
};
constexpr std::array<FamilyRow, 4> kFamilies{{
    // in the order of Family
    {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
}};

// Reads typed values out of one JSON object, collecting what is wrong. An absent or null key is the
// default.
class Reader {
  public:
    Reader(const Json& json, std::string prefix, std::vector<std::string>* problems)
        : json_(json), prefix_(std::move(prefix)), problems_(problems) {}

    [[nodiscard]] const Json* find(const char* key) const {
        const auto place = json_.find(key);
        return place == json_.end() || place->is_null() ? nullptr : &*place;
    }
    [[nodiscard]] bool has(const char* key) const { return find(key) != nullptr; }
    [[nodiscard]] bool is_absent(const char* key) const { return !json_.contains(key); }

    template <class... Args>
    void problem(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
        if (code == ErrorCode::kUnsupported) any_unsupported_ = true;
        problems_->push_back(prefix_ + fmt::format(format, std::forward<Args>(args)...));
    }

    std::int64_t whole(const char* key, std::optional<std::int64_t> absent, std::int64_t max) {
        const Json* value = find(key);
        if (value == nullptr) {
            if (!absent) problem(ErrorCode::kMalformed, "{} is missing", key);
            return absent.value_or(1);
        }
        if (!value->is_number_integer() || *value < 1 || *value > max) {
            problem(
                ErrorCode::kMalformed,
                "{} must be a whole number from 1 to {}, not {}",
                key,
                max,
                shown(*value)
            );
            return 1;
        }
        return value->get<std::int64_t>();
    }

    // A finite number > 0.
    double positive(const char* key, std::optional<double> absent) {
        const Json* value = find(key);
        if (value == nullptr) {
            if (!absent) problem(ErrorCode::kMalformed, "{} is missing", key);
            return absent.value_or(1.0);
        }
        const double number = value->is_number() ? value->get<double>() : 0.0;
        if (!std::isfinite(number) || number <= 0.0) {
            problem(ErrorCode::kMalformed, "{} must be a number > 0, not {}", key, shown(*value));
            return 1.0;
        }
        return number;
    }

    bool flag(const char* key, bool absent) {
        const Json* value = find(key);
        if (value == nullptr) return absent;
        if (!value->is_boolean()) {
            problem(ErrorCode::kMalformed, "{} must be true or false, not {}", key, shown(*value));
            return absent;
        }
        return value->get<bool>();
    }

    std::string text(const char* key, std::string_view absent) {
        const Json* value = find(key);
        if (value == nullptr) return std::string(absent);
        if (!value->is_string()) {
            problem(ErrorCode::kMalformed, "{} must be a string, not {}", key, shown(*value));
            return std::string(absent);
        }
        return value->get<std::string>();
    }

    static std::string shown(const Json& value) {
        constexpr std::size_t kShownMax = 80;
        std::string text =
            value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
        if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
        return text;
    }

    [[nodiscard]] bool any_unsupported() const { return any_unsupported_; }

  private:
    const Json& json_;
    std::string prefix_;
    std::vector<std::string>* problems_;
    bool any_unsupported_ = false;
};

std::optional<Family> read_family(Reader& reader) {
    std::string architecture;
    if (const Json* list = reader.find("architectures")) {
        if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
            reader.problem(ErrorCode::kMalformed, "architectures must name one architecture");
            return std::nullopt;
        }
        architecture = list->front().get<std::string>();
    }
    const std::string model_type = reader.text("model_type", "");
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < kFamilies.size(); ++i) {
        const FamilyRow& row = kFamilies[i];
        known.push_back(row.architecture);
        if (!architecture.empty() ? architecture == row.architecture
                                  : model_type == row.model_type) {
            return static_cast<Family>(i);
        }
    }
    reader.problem(
        ErrorCode::kUnsupported,
        "architecture '{}' is unknown; known are {}",
        architecture.empty() ? model_type : architecture,
        fmt::join(known, ", ")
    );
    return std::nullopt;
}

// Settings that change the arithmetic and that nothing here computes: refused unless they have the
// value that means "off".
void refuse_unsupported(Reader& reader) {
    const std::string act = reader.text("hidden_act", "silu");
    if (act != "silu" && act != "swish") {
        reader.problem(ErrorCode::kUnsupported, "hidden_act '{}'; only silu is supported", act);
    }
    if (reader.has("quantization_config") || reader.has("compression_config")) {
        reader.problem(
            ErrorCode::kUnsupported, "quantization_config: quantized checkpoints are not supported"
        );
    }
    struct Setting {
        const char* key;
        double off;
    };
    constexpr std::array<Setting, 11> kSettings{{
        {"partial_rotary_factor", 1.0},
        {"attn_logit_softcapping", 0.0},
        {"final_logit_softcapping", 0.0},
        {"attention_multiplier", 0.0},
        {"residual_multiplier", 1.0},
        {"embedding_multiplier", 1.0},
        {"logits_scaling", 1.0},
        {"logit_scale", 1.0},
        {"num_experts", 0.0},
        {"num_local_experts", 0.0},
        {"query_pre_attn_scalar", 0.0},
    }};
    for (const Setting& setting : kSettings) {
        const Json* value = reader.find(setting.key);
        if (value == nullptr || (value->is_number() && value->get<double>() == setting.off))
            continue;
        reader.problem(
            ErrorCode::kUnsupported, "{} {} is not supported", setting.key, Reader::shown(*value)
        );
    }
}

void read_scaling(Reader& reader, const std::string& type, RopeConfig* rope) {
    if (type == "default") return;
    if (type == "linear") {
        rope->scaling = RopeConfig::Scaling::kLinear;
        rope->factor = reader.positive("factor", std::nullopt);
        return;
    }
    if (type == "llama3") {
        rope->scaling = RopeConfig::Scaling::kLlama3;
        rope->factor = reader.positive("factor", std::nullopt);
        rope->low_freq_factor = reader.positive("low_freq_factor", std::nullopt);
        rope->high_freq_factor = reader.positive("high_freq_factor", std::nullopt);
        rope->original_context =
            reader.whole("original_max_position_embeddings", std::nullopt, kContextMax);
        if (rope->high_freq_factor <= rope->low_freq_factor) {
            reader.problem(ErrorCode::kMalformed, "high_freq_factor must exceed low_freq_factor");
        }
        return;
    }
    reader.problem(
        ErrorCode::kUnsupported, "rope type '{}'; known are default, linear and llama3", type
    );
}

RopeConfig read_rope(Reader& config, std::vector<std::string>* problems) {
    RopeConfig rope;
    const bool is_new_form = config.has("rope_parameters");
    const char* key = is_new_form ? "rope_parameters" : "rope_scaling";
    if (!is_new_form) rope.theta = config.positive("rope_theta", 10000.0);
    const Json* settings = config.find(key);
    if (settings == nullptr) return rope;
    if (!settings->is_object()) {
        config.problem(ErrorCode::kMalformed, "{} must be an object", key);
        return rope;
    }
    Reader reader(*settings, fmt::format("{}: ", key), problems);
    if (std::any_of(settings->begin(), settings->end(), [](const Json& v) {
            return v.is_object();
        })) {
        config.problem(ErrorCode::kUnsupported, "{} that differ from layer to layer", key);
        return rope;
    }
    if (is_new_form)
        rope.theta = reader.positive("rope_theta", config.positive("rope_theta", 10000.0));
    if (const Json* part = reader.find("partial_rotary_factor"); part != nullptr && *part != 1.0) {
        config.problem(ErrorCode::kUnsupported, "partial_rotary_factor {}", Reader::shown(*part));
    }
    // "type" is the older spelling. Without either, the settings mean nothing to transformers too.
    const std::string type = reader.text("rope_type", reader.text("type", "default"));
    read_scaling(reader, type, &rope);
    if (reader.any_unsupported())
        config.problem(ErrorCode::kUnsupported, "{} is not supported", key);
    return rope;
}

// Which layers look at a window only. As in transformers: Mistral's every layer; Qwen's from
// max_window_layers on and only with use_sliding_window; `layer_types` overrides both.
std::vector<std::optional<std::int64_t>> read_windows(Reader& reader, const ModelConfig& config) {
    const bool is_qwen = config.family == Family::kQwen2 || config.family == Family::kQwen3;
    const auto num_layers = static_cast<std::size_t>(config.num_layers);
    std::vector<std::optional<std::int64_t>> windows(num_layers);
    std::optional<std::int64_t> window;
    if (reader.has("sliding_window")) window = reader.whole("sliding_window", 1, kContextMax);
    if (is_qwen && !reader.flag("use_sliding_window", false)) window.reset();
    // Not the same as null, which means none: transformers' default.
    if (config.family == Family::kMistral && reader.is_absent("sliding_window")) window = 4096;
    if (config.family == Family::kLlama) window.reset();  // its config has no such setting

    std::size_t first = 0;
    if (is_qwen && window) {
        const Json* value = reader.find("max_window_layers");
        if (value != nullptr && value->is_number_unsigned()) {
            first = std::min<std::size_t>(value->get<std::size_t>(), num_layers);
        } else {
            first = std::min<std::size_t>(28, num_layers);  // transformers' default
        }
    }
    for (std::size_t layer = first; layer < num_layers; ++layer) windows[layer] = window;

    const Json* types = reader.find("layer_types");
    if (types == nullptr || config.family == Family::kLlama) return windows;
    if (!types->is_array() || types->size() != num_layers) {
        reader.problem(ErrorCode::kMalformed, "layer_types must have {} entries", num_layers);
        return windows;
    }
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
        const Json& type = (*types)[layer];
        if (type == "full_attention") {
            windows[layer].reset();
        } else if (type == "sliding_attention" && window) {
            windows[layer] = window;
        } else {
            reader.problem(
                ErrorCode::kUnsupported,
                "layer_types: {} for layer {}; known are full_attention and, with a "
                "sliding_window, sliding_attention",
                Reader::shown(type),
                layer
            );
            return windows;
        }
    }
    return windows;
}

void read_shape(Reader& reader, ModelConfig* config) {
    config->hidden = reader.whole("hidden_size", std::nullopt, kSizeMax);
    config->ffn = reader.whole("intermediate_size", std::nullopt, kSizeMax);
    config->num_layers = reader.whole("num_hidden_layers", std::nullopt, kLayersMax);
    config->num_q_heads = reader.whole("num_attention_heads", std::nullopt, kSizeMax);
    config->num_kv_heads = reader.whole("num_key_value_heads", config->num_q_heads, kSizeMax);
    config->vocab_len = reader.whole("vocab_size", std::nullopt, kVocabMax);
    config->context_len = reader.whole("max_position_embeddings", std::nullopt, kContextMax);
    config->norm_eps = reader.positive("rms_norm_eps", 1e-6);

    if (config->num_q_heads % config->num_kv_heads != 0) {
        reader.problem(
            ErrorCode::kMalformed,
            "num_attention_heads {} is no multiple of num_key_value_heads {}",
            config->num_q_heads,
            config->num_kv_heads
        );
    }
    // Qwen3's head_dim is 128 where the key is absent; the others divide.
    const bool divides = config->hidden % config->num_q_heads == 0;
    std::optional<std::int64_t> head_dim = config->hidden / config->num_q_heads;
    if (config->family == Family::kQwen3) {
        head_dim = 128;
    } else if (!divides && !reader.has("head_dim")) {
        reader.problem(
            ErrorCode::kMalformed,
            "hidden_size {} is no multiple of num_attention_heads {}, and there is no head_dim",
            config->hidden,
            config->num_q_heads
        );
        return;
    }
    config->head_dim = reader.whole("head_dim", head_dim, 1 << 16);
    if (config->head_dim > kHeadDimMax) {
        reader.problem(
            ErrorCode::kUnsupported,
            "head_dim {}; at most {} is supported",
            config->head_dim,
            kHeadDimMax
        );
    }
    if (config->head_dim % 2 != 0) {
        reader.problem(
            ErrorCode::kUnsupported, "head_dim {}: rotary embedding needs it even", config->head_dim
        );
    }
    if (config->num_q_heads * config->head_dim > kSizeMax) {
        reader.problem(ErrorCode::kTooLarge, "num_attention_heads * head_dim is over {}", kSizeMax);
    }
}

void read_eos(Reader& reader, std::int64_t vocab_len, std::set<TokenId>* ids) {
    const Json* value = reader.find("eos_token_id");
    if (value == nullptr) return;
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& id : list) {
        if (!id.is_number_integer() || id < 0 || id >= vocab_len || ids->size() == kEosMax) {
            reader.problem(
                ErrorCode::kMalformed,
                "eos_token_id must be token ids below {}, at most {}, not {}",
                vocab_len,
                kEosMax,
                Reader::shown(*value)
            );
            return;
        }
        ids->insert(static_cast<TokenId>(id.get<std::int32_t>()));
    }
}

Result<Json> parse_object(std::string_view text, const std::string& path) {
    bool is_too_deep = false;
    const auto watch = [&](int depth, Json::parse_event_t, Json&) {
        is_too_deep = is_too_deep || depth > kDepthMax;
        return !is_too_deep;
    };
    Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
    if (is_too_deep) {
        return make_error(ErrorCode::kMalformed, "'{}' is nested deeper than {}", path, kDepthMax);
    }
    if (json.is_discarded()) return make_error(ErrorCode::kMalformed, "'{}' is not JSON", path);
    if (!json.is_object()) return make_error(ErrorCode::kMalformed, "'{}' is no JSON object", path);
    return json;
}

}  // namespace

std::string_view name_of(Family family) {
    return kFamilies[static_cast<std::size_t>(family)].model_type;
}

Result<ModelConfig> ModelConfig::parse(
    std::string_view config_text, std::string_view generation_text, const std::string& path
) {
    ASSIGN_OR_RETURN(const Json json, parse_object(config_text, path));
    std::vector<std::string> problems;
    Reader reader(json, "", &problems);

    ModelConfig config;
    const std::optional<Family> family = read_family(reader);
    if (!family) return make_error(ErrorCode::kUnsupported, "'{}': {}", path, problems.front());
    config.family = *family;
    refuse_unsupported(reader);
    read_shape(reader, &config);
    config.rope = read_rope(reader, &problems);
    config.windows = read_windows(reader, config);

    config.tied_embeddings = reader.flag("tie_word_embeddings", false);
    config.qk_norm = config.family == Family::kQwen3;
    if (config.family == Family::kQwen2) {
        config.qkv_bias = true;  // part of the architecture, not a setting
    } else if (config.family != Family::kMistral) {
        config.qkv_bias = reader.flag("attention_bias", false);
        config.o_bias = config.qkv_bias;
    }
    if (config.family == Family::kLlama) config.mlp_bias = reader.flag("mlp_bias", false);

    std::set<TokenId> eos;
    read_eos(reader, config.vocab_len, &eos);
    if (!generation_text.empty()) {
        ASSIGN_OR_RETURN(const Json generation, parse_object(generation_text, path));
        Reader generation_reader(generation, "generation_config.json: ", &problems);
        read_eos(generation_reader, config.vocab_len, &eos);
    }
    config.eos_ids.assign(eos.begin(), eos.end());

    if (!problems.empty()) {
        const ErrorCode code =
            reader.any_unsupported() ? ErrorCode::kUnsupported : ErrorCode::kMalformed;
        return make_error(code, "'{}': {}", path, fmt::join(problems, "; "));
    }
    return config;
}

Result<ModelConfig> ModelConfig::read(const std::string& directory) {
    const std::string path = directory + "/config.json";
    ASSIGN_OR_RETURN(const std::string config, MappedFile::read(path, kConfigBytesMax));
    const std::string generation_path = directory + "/generation_config.json";
    struct stat info {};
    std::string generation;
    if (::stat(generation_path.c_str(), &info) == 0) {
        ASSIGN_OR_RETURN(generation, MappedFile::read(generation_path, kConfigBytesMax));
    }
    return parse(config, generation, path);
}

std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
    std::vector<double> frequencies(static_cast<std::size_t>(head_dim / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
        double frequency = std::pow(rope.theta, -exponent);
        if (rope.scaling == RopeConfig::Scaling::kLinear) frequency /= rope.factor;
        if (rope.scaling == RopeConfig::Scaling::kLlama3) {
            // Llama 3.1's reference code: by how often the wave fits into the pretraining's
            // context.
            const double waves =
                static_cast<double>(rope.original_context) * frequency / (2.0 * std::numbers::pi);
            const double ramp =
                (waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
            const double kept = std::clamp(ramp, 0.0, 1.0);
            frequency = (1.0 - kept) * frequency / rope.factor + kept * frequency;
        }
        frequencies[i] = frequency;
    }
    return frequencies;
}

std::optional<std::string> difference_in_shape(
    const ModelConfig& serving, const ModelConfig& other
) {
    std::optional<std::string> first;
    const auto compare = [&](std::string_view what, const auto& ours, const auto& theirs) {
        if (!first && ours != theirs)
            first = fmt::format("{} is {}, serving is {}", what, theirs, ours);
    };
    compare("the family", name_of(serving.family), name_of(other.family));
    compare("hidden_size", serving.hidden, other.hidden);
    compare("intermediate_size", serving.ffn, other.ffn);
    compare("num_hidden_layers", serving.num_layers, other.num_layers);
    compare("num_attention_heads", serving.num_q_heads, other.num_q_heads);
    compare("num_key_value_heads", serving.num_kv_heads, other.num_kv_heads);
    compare("head_dim", serving.head_dim, other.head_dim);
    compare("vocab_size", serving.vocab_len, other.vocab_len);
    compare("rms_norm_eps", serving.norm_eps, other.norm_eps);
    compare("tie_word_embeddings", serving.tied_embeddings, other.tied_embeddings);
    compare("the q, k, v bias", serving.qkv_bias, other.qkv_bias);
    compare("the o bias", serving.o_bias, other.o_bias);
    compare("the mlp bias", serving.mlp_bias, other.mlp_bias);
    compare("the q and k norm", serving.qk_norm, other.qk_norm);
    compare("rope_theta", serving.rope.theta, other.rope.theta);
    compare(
        "the rope scaling",
        static_cast<int>(serving.rope.scaling),
        static_cast<int>(other.rope.scaling)
    );
    compare("the rope factor", serving.rope.factor, other.rope.factor);
    if (!first && serving.windows != other.windows) first = "the sliding windows differ";
    return first;
}

}  // namespace pitstop
