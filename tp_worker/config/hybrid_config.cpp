#include "tp_worker/config/hybrid_config.h"

#include <nlohmann/json.hpp>

#include <string>

namespace pitstop::tp_worker {
namespace {

using Json = ConfigReader::Json;

// The limits of the gated delta net (kernels/gated_delta.h).
constexpr std::int64_t kDeltaHeadDimMax = 256;
constexpr std::int64_t kDeltaKernelMin = 2;
constexpr std::int64_t kDeltaKernelMax = 8;
constexpr std::int64_t kDeltaHeadsMax = 1 << 12;
constexpr std::int64_t kDeltaReadMax = 1 << 20;

constexpr const char* kTextConfig = "text_config";
constexpr const char* kTied = "tie_word_embeddings";

std::int64_t read_at_most(
    ConfigReader& reader, const char* key, std::int64_t absent, std::int64_t max
) {
    const std::int64_t value = reader.whole(key, absent, kDeltaReadMax);
    if (value <= max) return value;
    reader.unsupported("{} {}; at most {} is supported", key, value, max);
    return max;
}

// Returns the layers with a gated delta net, as layer_types or full_attention_interval lists them.
std::vector<std::int64_t> read_delta_layers(ConfigReader& reader, std::int64_t num_layers) {
    std::vector<std::int64_t> layers;
    const Json* const types = reader.find_value("layer_types");
    if (types == nullptr) {
        const std::int64_t interval = reader.whole("full_attention_interval", 4, kDeltaReadMax);
        for (std::int64_t layer = 0; layer < num_layers; ++layer)
            if ((layer + 1) % interval != 0) layers.push_back(layer);
    } else if (!types->is_array() || std::ssize(*types) != num_layers) {
        reader.malformed("layer_types must have {} entries", num_layers);
    } else {
        for (std::int64_t layer = 0; layer < num_layers; ++layer) {
            const Json& type = (*types)[static_cast<std::size_t>(layer)];
            if (type == "linear_attention") layers.push_back(layer);
            if (type == "linear_attention" || type == "full_attention") continue;
            reader.unsupported(
                "layer_types: {} for layer {}; known are full_attention and linear_attention",
                ConfigReader::shown(type),
                layer
            );
            break;
        }
    }
    if (std::ssize(layers) == num_layers) {
        reader.unsupported(
            "layer_types or full_attention_interval leaves no layer with full_attention; a model "
            "needs one"
        );
    }
    return layers;
}

void refuse_other_gates(ConfigReader& reader) {
    if (!reader.flag("attn_output_gate", true))
        reader.unsupported("attn_output_gate false; only gated attention is supported");
    const std::string gate = reader.text("output_gate_type", "silu");
    if (gate != "silu" && gate != "swish")
        reader.unsupported("output_gate_type '{}'; only silu is supported", gate);
    if (reader.flag("mtp_use_dedicated_embeddings", false)) {
        reader.unsupported(
            "mtp_use_dedicated_embeddings true is not supported; a model shares its embeddings"
        );
    }
}

}  // namespace

void read_hybrid(ConfigReader& reader, const Family& family, ModelConfig* config) {
    refuse_other_gates(reader);
    config->zero_centred_norms = true;
    config->gated_attention = true;
    DeltaConfig& delta = config->delta;
    delta.kernel = read_at_most(reader, "linear_conv_kernel_dim", 4, kDeltaKernelMax);
    if (delta.kernel < kDeltaKernelMin) {
        reader.unsupported(
            "linear_conv_kernel_dim {}; at least {} is supported", delta.kernel, kDeltaKernelMin
        );
    }
    delta.key_dim = read_at_most(reader, "linear_key_head_dim", 128, kDeltaHeadDimMax);
    delta.value_dim = read_at_most(reader, "linear_value_head_dim", 128, kDeltaHeadDimMax);
    delta.num_key_heads = read_at_most(reader, "linear_num_key_heads", 16, kDeltaHeadsMax);
    delta.num_value_heads = read_at_most(reader, "linear_num_value_heads", 32, kDeltaHeadsMax);
    if (delta.num_value_heads % delta.num_key_heads != 0) {
        reader.malformed(
            "linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
            delta.num_value_heads,
            delta.num_key_heads
        );
    }
    delta.is_grouped = family.has_grouped_delta;
    delta.layers = read_delta_layers(reader, config->num_layers);
    const std::string dtype = reader.text("mamba_ssm_dtype", "float32");
    if (dtype != "float32") {
        config->notes.push_back(
            fmt::format("mamba_ssm_dtype '{}': states are in fp32, as in transformers", dtype)
        );
    }
}

const Json* find_text_config(const Json& config, const Family& family, ConfigReader& reader) {
    const std::string model_type = reader.text("model_type", "");
    const Json* const text = reader.find_value(kTextConfig);
    const bool is_flat = model_type == family.text_type || (model_type.empty() && text == nullptr);
    if (family.text_type.empty() || is_flat) return &config;
    if (text == nullptr || !text->is_object()) {
        reader.malformed(
            "{} is missing: '{}' has its model's keys there", kTextConfig, family.model_type
        );
        return nullptr;
    }
    const auto type = text->find("model_type");
    if (type != text->end() && *type != std::string(family.text_type)) {
        reader.malformed(
            "{}: model_type {}; '{}' is accepted",
            kTextConfig,
            ConfigReader::shown(*type),
            family.text_type
        );
    }
    return text;
}

bool read_tied_embeddings(ConfigReader& outer, ConfigReader& text) {
    const bool is_tied = text.flag(kTied, false);
    if (outer.find(kTied) == nullptr) return is_tied;
    const bool is_tied_outside = outer.flag(kTied, false);
    if (text.find(kTied) != nullptr && is_tied != is_tied_outside) {
        outer.malformed("{} is {} here and {} in {}", kTied, is_tied_outside, is_tied, kTextConfig);
    }
    return is_tied_outside;
}

}  // namespace pitstop::tp_worker
