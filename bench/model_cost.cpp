#include "bench/model_cost.h"

#include "base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace pitstop::bench {
namespace {

constexpr double kBytesPerElement = 2;  // bf16
constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20;

double seconds_min(double bytes, double flops, const StepLimits& limits) {
    return std::max(bytes / limits.read_bytes_per_s, flops / limits.flops_per_s);
}

}  // namespace

ModelCost cost_of(const ModelShape& shape) {
    ModelCost cost;
    for (const PlannedTensor& tensor : tensors_of(shape)) {
        const double elements = static_cast<double>(num_elements(tensor));
        const bool is_embedding = tensor.name == "model.embed_tokens.weight";
        const bool is_of_expert = tensor.name.find(".mlp.experts.") != std::string::npos;
        const bool is_head = tensor.name == "lm_head.weight" || (is_embedding && shape.tied);
        if (is_of_expert) {
            const auto count = static_cast<double>(shape.experts->count);
            cost.expert_bytes += kBytesPerElement * elements / count;
            cost.layer_flops += 2 * elements * static_cast<double>(shape.experts->chosen) / count;
            continue;
        }
        if (!is_embedding || is_head) cost.weight_bytes += kBytesPerElement * elements;
        if (is_head) {
            cost.head_flops += 2 * elements;
        } else if (!is_embedding && tensor.shape.size() == 2) {
            cost.layer_flops += 2 * elements;
        }
    }
    if (shape.experts) {
        cost.experts = static_cast<double>(shape.experts->count);
        cost.chosen = static_cast<double>(shape.experts->chosen);
    }
    std::int64_t num_deltas = 0;  // layers with a gated delta net
    for (std::int64_t i = 0; shape.delta && i < shape.layers; ++i)
        num_deltas += shape.delta->has(i);
    const std::int64_t kv_elements =
        2 * (shape.layers - num_deltas) * shape.kv_heads * shape.head_dim;
    cost.kv_bytes = kBytesPerElement * static_cast<double>(kv_elements);
    if (shape.delta) {
        const std::int64_t elements = num_deltas * shape.delta->width() * shape.delta->head_dim;
        cost.state_bytes = sizeof(float) * static_cast<double>(elements);
    }
    return cost;
}

double ModelCost::weights_read(double tokens) const {
    if (experts == 0) return weight_bytes;
    const double share = 1 - std::pow(1 - chosen / experts, tokens);
    return weight_bytes + expert_bytes * experts * share;
}

Result<ModelShape> read_shape(const std::string& directory) {
    const std::string path = directory + "/config.json";
    ASSIGN_OR_RETURN(const std::string text, MappedFile::read(path, kConfigBytesMax));
    const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) {
        return make_error(ErrorCode::kMalformed, "{} is not a JSON object", path);
    }
    const auto integer = [&](const char* key, std::int64_t absent) {
        const auto found = config.find(key);
        return found != config.end() && found->is_number_integer() ? found->get<std::int64_t>()
                                                                   : absent;
    };
    ModelShape shape;
    const auto type = config.find("model_type");
    if (type == config.end() || !type->is_string()) {
        return make_error(ErrorCode::kMalformed, "{} has no model_type", path);
    }
    ASSIGN_OR_RETURN(shape.family, parse_family(type->get<std::string>()));
    shape.vocab = integer("vocab_size", 0);
    shape.hidden = integer("hidden_size", 0);
    shape.ffn = integer("intermediate_size", 0);
    shape.layers = integer("num_hidden_layers", 0);
    shape.heads = integer("num_attention_heads", 0);
    shape.kv_heads = integer("num_key_value_heads", shape.heads);
    shape.head_dim = integer("head_dim", shape.heads > 0 ? shape.hidden / shape.heads : 0);
    shape.context = integer("max_position_embeddings", 0);
    if (shape.family == ModelFamily::kQwen35) {
        shape.delta = {
            .heads = integer("linear_num_key_heads", 16),
            .head_dim = integer("linear_key_head_dim", 128),
            .interval = integer("full_attention_interval", 4)};
        if (config.contains("layer_types") ||
            integer("linear_num_value_heads", 32) != shape.delta->heads ||
            integer("linear_value_head_dim", 128) != shape.delta->head_dim) {
            return make_error(
                ErrorCode::kMalformed,
                "{}: the limit is computed only for equally many value and key heads, all of one "
                "size, and for full_attention_interval instead of layer_types",
                path
            );
        }
    }
    if (shape.family == ModelFamily::kQwen3Moe) {
        shape.ffn = integer("moe_intermediate_size", 768);
        shape.experts = {
            .count = integer("num_experts", 128), .chosen = integer("num_experts_per_tok", 8)};
        const auto dense = config.find("mlp_only_layers");
        const bool has_dense = dense != config.end() && dense->is_array() && !dense->empty();
        if (has_dense || integer("decoder_sparse_step", 1) != 1) {
            return make_error(
                ErrorCode::kMalformed,
                "{}: the limit is computed only for experts in all layers: mlp_only_layers empty "
                "and decoder_sparse_step 1",
                path
            );
        }
    }
    const auto tied = config.find("tie_word_embeddings");
    shape.tied = tied != config.end() && tied->is_boolean() && tied->get<bool>();
    if (const auto problem = invalid(shape)) {
        return make_error(ErrorCode::kMalformed, "{}: {}", path, *problem);
    }
    return shape;
}

double decode_step_seconds_min(
    const ModelCost& cost, const StepLimits& limits, double batch, double context
) {
    const double bytes =
        cost.weights_read(batch) + batch * (context * cost.kv_bytes + cost.state_bytes);
    const double flops = batch * (cost.layer_flops + cost.head_flops);
    return seconds_min(bytes, flops, limits);
}

double prefill_seconds_min(const ModelCost& cost, const StepLimits& limits, double tokens) {
    const double flops = tokens * cost.layer_flops + cost.head_flops;
    return seconds_min(cost.weights_read(tokens), flops, limits);
}

}  // namespace pitstop::bench
