#include "bench/model_shape.h"

#include "bench/bpe_vocabulary.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace pitstop::bench {
namespace {

using Json = nlohmann::ordered_json;

struct NamedShape {
    std::string_view name;
    ModelShape shape;
};

const std::array<NamedShape, 8> kShapes{{
    {"tiny",
     {.family = ModelFamily::kQwen3,
      .vocab = 2048,
      .hidden = 128,
      .ffn = 384,
      .layers = 2,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 32,
      .context = 32768,
      .tied = true,
      .rope_theta = 10000.0}},
    {"qwen3-0.6b",
     {.family = ModelFamily::kQwen3,
      .vocab = 151936,
      .hidden = 1024,
      .ffn = 3072,
      .layers = 28,
      .heads = 16,
      .kv_heads = 8,
      .head_dim = 128,
      .context = 40960,
      .tied = true,
      .rope_theta = 1e6}},
    {"qwen3-8b",
     {.family = ModelFamily::kQwen3,
      .vocab = 151936,
      .hidden = 4096,
      .ffn = 12288,
      .layers = 36,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .context = 40960,
      .tied = false,
      .rope_theta = 1e6}},
    {"qwen3.5-0.8b",
     {.family = ModelFamily::kQwen35,
      .vocab = 248320,
      .hidden = 1024,
      .ffn = 3584,
      .layers = 24,
      .heads = 8,
      .kv_heads = 2,
      .head_dim = 256,
      .context = 262144,
      .tied = true,
      .rope_theta = 1e7,
      .delta = DeltaShape{.heads = 16, .head_dim = 128}}},
    {"experts-2b-a0.3b",
     {.family = ModelFamily::kQwen3Moe,
      .vocab = 98304,
      .hidden = 1024,
      .ffn = 384,
      .layers = 24,
      .heads = 16,
      .kv_heads = 4,
      .head_dim = 64,
      .context = 32768,
      .tied = false,
      .rope_theta = 1e6,
      .experts = ExpertsShape{.count = 64, .chosen = 4}}},
    {"qwen2.5-0.5b",
     {.family = ModelFamily::kQwen2,
      .vocab = 151936,
      .hidden = 896,
      .ffn = 4864,
      .layers = 24,
      .heads = 14,
      .kv_heads = 2,
      .head_dim = 64,
      .context = 32768,
      .tied = true,
      .rope_theta = 1e6}},
    {"llama-3.2-1b",
     {.family = ModelFamily::kLlama,
      .vocab = 128256,
      .hidden = 2048,
      .ffn = 8192,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .context = 131072,
      .tied = true,
      .rope_theta = 500000.0,
      .llama3_rope_scaling = true,
      .norm_eps = 1e-5}},
    {"mistral-7b",
     {.family = ModelFamily::kMistral,
      .vocab = 32000,
      .hidden = 4096,
      .ffn = 14336,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .context = 32768,
      .tied = false,
      .rope_theta = 10000.0,
      .norm_eps = 1e-5,
      .sliding_window = 4096}},
}};

constexpr std::array<std::string_view, 9> kShapeNames{
    "tiny",
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen3.5-0.8b",
    "experts-2b-a0.3b",
    "qwen2.5-0.5b",
    "llama-3.2-1b",
    "mistral-7b",
    "custom"};

constexpr std::array<std::string_view, 6> kFamilyNames{
    "qwen3", "qwen2", "llama", "mistral", "qwen3_5_text", "qwen3_moe"};

// Logits of a random model: wide enough that sampling is not uniform, narrow enough that no token
// wins for ever.
constexpr double kLogitStd = 1.5;

// silu(g) * u with g, u standard normal has this root mean square: sqrt(E[silu(g)^2]),
// integrated numerically.
constexpr double kSiluMulRms = 0.596;
// The root mean square of sigmoid(g), where g is standard normal.
constexpr double kSigmoidRms = 0.542;

double over_sqrt(std::int64_t reduced) { return 1.0 / std::sqrt(static_cast<double>(reduced)); }

}  // namespace

std::string_view model_type_of(ModelFamily family) {
    return kFamilyNames[static_cast<std::size_t>(family)];
}

Result<ModelFamily> parse_family(std::string_view model_type) {
    for (std::size_t i = 0; i < kFamilyNames.size(); ++i) {
        if (kFamilyNames[i] == model_type) return static_cast<ModelFamily>(i);
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "family '{}' is not one of {}",
        model_type,
        fmt::join(kFamilyNames, ", ")
    );
}

std::span<const std::string_view> shape_names() { return kShapeNames; }

Result<ModelShape> find_shape(std::string_view name) {
    if (name == "custom") return ModelShape{};
    for (const NamedShape& named : kShapes) {
        if (named.name == name) return named.shape;
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "shape '{}' is not one of {}",
        name,
        fmt::join(kShapeNames, ", ")
    );
}

std::optional<std::string> invalid(const ModelShape& s) {
    const std::array<std::pair<std::string_view, std::int64_t>, 8> sizes{{
        {"vocab", s.vocab},
        {"hidden", s.hidden},
        {"ffn", s.ffn},
        {"layers", s.layers},
        {"heads", s.heads},
        {"kv-heads", s.kv_heads},
        {"head-dim", s.head_dim},
        {"context", s.context},
    }};
    constexpr std::int64_t kSizeMax = std::int64_t{1} << 24;
    for (const auto& [name, size] : sizes) {
        if (size < 1 || size > kSizeMax) {
            return fmt::format("--{} is {}; it takes 1 to {}", name, size, kSizeMax);
        }
    }
    if (s.vocab < kBpeVocabMin || s.vocab > kBpeVocabMax) {
        return fmt::format(
            "--vocab is {}; a byte-level vocabulary has {} to {} entries",
            s.vocab,
            kBpeVocabMin,
            kBpeVocabMax
        );
    }
    if (s.heads % s.kv_heads != 0) {
        return fmt::format("--heads {} is not a multiple of --kv-heads {}", s.heads, s.kv_heads);
    }
    if (s.head_dim % 2 != 0) {
        return fmt::format("--head-dim {} is odd; rotary embedding turns pairs", s.head_dim);
    }
    if (s.family == ModelFamily::kQwen2 && s.head_dim * s.heads != s.hidden) {
        return fmt::format(
            "qwen2 has no head_dim of its own: --head-dim {} times --heads {} must be --hidden {}",
            s.head_dim,
            s.heads,
            s.hidden
        );
    }
    if ((s.family == ModelFamily::kQwen35) != s.delta.has_value()) {
        return "--family qwen3_5_text and the shape qwen3.5-0.8b need each other";
    }
    if ((s.family == ModelFamily::kQwen3Moe) != s.experts.has_value()) {
        return "--family qwen3_moe and the shape experts-2b-a0.3b need each other";
    }
    if (s.experts && (s.experts->chosen < 1 || s.experts->chosen > s.experts->count)) {
        return fmt::format(
            "a token has {} experts of {}; accepted are 1 to all",
            s.experts->chosen,
            s.experts->count
        );
    }
    if (s.delta && s.layers < s.delta->interval) {
        return fmt::format(
            "--layers is {}; a hybrid has attention in each layer whose number {} divides",
            s.layers,
            s.delta->interval
        );
    }
    if (s.sliding_window && *s.sliding_window < 1) {
        return fmt::format("--sliding-window is {}; it takes 1 or more", *s.sliding_window);
    }
    return std::nullopt;
}

std::int64_t num_elements(const PlannedTensor& tensor) {
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    return count;
}

namespace {

// Lists the tensors of a shape's modules.
class TensorPlan {
  public:
    explicit TensorPlan(const ModelShape& shape) : s_(shape) {}

    void weight(std::string name, std::int64_t rows, std::int64_t cols, double std) {
        tensors_.push_back({std::move(name), {rows, cols}, 0.0, std});
    }
    // The norms of a hybrid add 1 to their weights.
    void norm(std::string name, std::int64_t size) {
        tensors_.push_back({std::move(name), {size}, s_.delta ? 0.0 : 1.0, 0.0});
    }
    void delta_net(const std::string& prefix);
    void attention(const std::string& prefix);
    void mlp(const std::string& prefix);
    void experts(const std::string& prefix);
    [[nodiscard]] std::vector<PlannedTensor> take() { return std::move(tensors_); }

  private:
    void vector(std::string name, std::int64_t size, double mean, double std) {
        tensors_.push_back({std::move(name), {size}, mean, std});
    }
    // For the weights of a product that is added to the residual stream.
    [[nodiscard]] double residual_std(std::int64_t reduced, double input_rms) const {
        return over_sqrt(s_.layers) * over_sqrt(reduced) / input_rms;
    }

    const ModelShape& s_;
    std::vector<PlannedTensor> tensors_{};
};

void TensorPlan::delta_net(const std::string& prefix) {
    const DeltaShape& delta = *s_.delta;
    const std::int64_t width = delta.width();
    weight(prefix + "in_proj_qkv.weight", 3 * width, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "in_proj_z.weight", width, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "in_proj_b.weight", delta.heads, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "in_proj_a.weight", delta.heads, s_.hidden, over_sqrt(s_.hidden));
    tensors_.push_back({prefix + "conv1d.weight", {3 * width, 1, DeltaShape::kKernel}, 0.0, 0.5});
    vector(prefix + "A_log", delta.heads, 0.0, 0.5);
    vector(prefix + "dt_bias", delta.heads, -3.0, 1.0);
    vector(prefix + "norm.weight", delta.head_dim, 1.0, 0.0);
    weight(prefix + "out_proj.weight", s_.hidden, width, residual_std(width, kSiluMulRms));
}

void TensorPlan::attention(const std::string& prefix) {
    const std::int64_t q_cols = s_.heads * s_.head_dim;
    const std::int64_t kv_cols = s_.kv_heads * s_.head_dim;
    const std::int64_t num_gates = s_.delta ? q_cols : 0;
    const double gate_rms = s_.delta ? kSigmoidRms : 1.0;
    weight(prefix + "q_proj.weight", q_cols + num_gates, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "k_proj.weight", kv_cols, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "v_proj.weight", kv_cols, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "o_proj.weight", s_.hidden, q_cols, residual_std(q_cols, gate_rms));
    if (s_.family == ModelFamily::kQwen2) {
        vector(prefix + "q_proj.bias", q_cols, 0.0, 0.1);
        vector(prefix + "k_proj.bias", kv_cols, 0.0, 0.1);
        vector(prefix + "v_proj.bias", kv_cols, 0.0, 0.1);
    }
    if (s_.family == ModelFamily::kQwen3 || s_.delta || s_.experts) {
        norm(prefix + "q_norm.weight", s_.head_dim);
        norm(prefix + "k_norm.weight", s_.head_dim);
    }
}

void TensorPlan::mlp(const std::string& prefix) {
    weight(prefix + "gate_proj.weight", s_.ffn, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "up_proj.weight", s_.ffn, s_.hidden, over_sqrt(s_.hidden));
    weight(prefix + "down_proj.weight", s_.hidden, s_.ffn, residual_std(s_.ffn, kSiluMulRms));
}

void TensorPlan::experts(const std::string& prefix) {
    weight(prefix + "gate.weight", s_.experts->count, s_.hidden, over_sqrt(s_.hidden));
    for (std::int64_t i = 0; i < s_.experts->count; ++i)
        mlp(fmt::format("{}experts.{}.", prefix, i));
}

}  // namespace

std::vector<PlannedTensor> tensors_of(const ModelShape& s) {
    TensorPlan plan(s);
    const double head_std = kLogitStd * over_sqrt(s.hidden);
    plan.weight("model.embed_tokens.weight", s.vocab, s.hidden, head_std);
    for (std::int64_t layer = 0; layer < s.layers; ++layer) {
        const std::string prefix = fmt::format("model.layers.{}.", layer);
        plan.norm(prefix + "input_layernorm.weight", s.hidden);
        if (s.delta && s.delta->has(layer)) {
            plan.delta_net(prefix + "linear_attn.");
        } else {
            plan.attention(prefix + "self_attn.");
        }
        plan.norm(prefix + "post_attention_layernorm.weight", s.hidden);
        if (s.experts) {
            plan.experts(prefix + "mlp.");
        } else {
            plan.mlp(prefix + "mlp.");
        }
    }
    plan.norm("model.norm.weight", s.hidden);
    if (!s.tied) plan.weight("lm_head.weight", s.vocab, s.hidden, head_std);
    return plan.take();
}

SpecialIds special_ids_of(const ModelShape& s) {
    return {.end_of_text = s.vocab - 3, .im_end = s.vocab - 1};
}

namespace {

void add_delta_keys(const DeltaShape& delta, Json& config) {
    config["full_attention_interval"] = delta.interval;
    config["linear_conv_kernel_dim"] = DeltaShape::kKernel;
    config["linear_key_head_dim"] = delta.head_dim;
    config["linear_num_key_heads"] = delta.heads;
    config["linear_num_value_heads"] = delta.heads;
    config["linear_value_head_dim"] = delta.head_dim;
    config["partial_rotary_factor"] = 0.25;
}

void add_expert_keys(const ModelShape& s, Json& config) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = Json::array();
    config["moe_intermediate_size"] = s.ffn;
    config["norm_topk_prob"] = true;
    config["num_experts"] = s.experts->count;
    config["num_experts_per_tok"] = s.experts->chosen;
}

}  // namespace

std::string config_json(const ModelShape& s, std::string_view torch_dtype) {
    constexpr std::array<std::string_view, 6> kArchitectures{
        "Qwen3ForCausalLM",
        "Qwen2ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3MoeForCausalLM"};
    const SpecialIds ids = special_ids_of(s);
    const bool is_qwen = s.family == ModelFamily::kQwen3 || s.family == ModelFamily::kQwen2 ||
                         s.family == ModelFamily::kQwen3Moe;
    Json config;
    config["architectures"] = {kArchitectures[static_cast<std::size_t>(s.family)]};
    config["attention_dropout"] = 0.0;
    if (s.family == ModelFamily::kQwen3 || s.family == ModelFamily::kLlama || s.experts) {
        config["attention_bias"] = false;
    }
    if (s.family == ModelFamily::kLlama) config["mlp_bias"] = false;
    config["bos_token_id"] = ids.end_of_text;
    config["eos_token_id"] = ids.im_end;
    if (s.family != ModelFamily::kQwen2) config["head_dim"] = s.head_dim;
    config["hidden_act"] = "silu";
    config["hidden_size"] = s.hidden;
    config["initializer_range"] = 0.02;
    config["intermediate_size"] = s.ffn;
    config["max_position_embeddings"] = s.context;
    config["model_type"] = model_type_of(s.family);
    config["num_attention_heads"] = s.heads;
    config["num_hidden_layers"] = s.layers;
    config["num_key_value_heads"] = s.kv_heads;
    config["rms_norm_eps"] = s.norm_eps;
    if (s.delta) add_delta_keys(*s.delta, config);
    if (s.experts) add_expert_keys(s, config);
    config["rope_scaling"] = nullptr;
    if (s.llama3_rope_scaling) {
        config["rope_scaling"] = {
            {"factor", 32.0},
            {"high_freq_factor", 4.0},
            {"low_freq_factor", 1.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "llama3"},
        };
    }
    config["rope_theta"] = s.rope_theta;
    if (s.family != ModelFamily::kLlama && !s.delta) {
        config["sliding_window"] = nullptr;
        if (s.sliding_window) config["sliding_window"] = *s.sliding_window;
    }
    if (is_qwen) {
        config["max_window_layers"] = s.layers;
        config["use_sliding_window"] = false;
    }
    config["tie_word_embeddings"] = s.tied;
    config["torch_dtype"] = torch_dtype;
    config["transformers_version"] = "4.51.0";
    config["use_cache"] = true;
    config["vocab_size"] = s.vocab;
    return config.dump(2) + "\n";
}

std::string generation_config_json(const ModelShape& s) {
    const SpecialIds ids = special_ids_of(s);
    Json config;
    config["bos_token_id"] = ids.end_of_text;
    config["eos_token_id"] = {ids.im_end, ids.end_of_text};
    config["pad_token_id"] = ids.end_of_text;
    config["do_sample"] = true;
    config["temperature"] = 1.0;
    config["transformers_version"] = "4.51.0";
    return config.dump(2) + "\n";
}

}  // namespace pitstop::bench
