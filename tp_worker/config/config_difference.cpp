// Finds the key in which two configurations describe models of different shapes.
#include "tp_worker/config/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

using Window = std::optional<std::int64_t>;

// Compares key by key, and keeps the first difference.
class Comparison {
  public:
    template <class T>
    void of(std::string_view key, const T& serving, const T& other) {
        if (!first_ && serving != other)
            first_ = fmt::format("{} is {}; the model that serves has {}", key, other, serving);
    }
    void of_windows(const std::vector<Window>& serving, const std::vector<Window>& other) {
        const auto shown = [](const Window& window) {
            return window ? fmt::format("{}", *window) : std::string("none");
        };
        for (std::size_t i = 0; !first_ && i < std::min(serving.size(), other.size()); ++i)
            of(fmt::format("the sliding window of layer {}", i), shown(serving[i]), shown(other[i])
            );
    }
    [[nodiscard]] const std::optional<std::string>& first() const { return first_; }

  private:
    std::optional<std::string> first_{};
};

void compare_rope(const RopeConfig& serving, const RopeConfig& other, Comparison* compare) {
    compare->of("rope_type", name_of(serving.scaling), name_of(other.scaling));
    compare->of("rope_theta", serving.theta, other.theta);
    compare->of("the rope's factor", serving.factor, other.factor);
    compare->of("low_freq_factor", serving.low_freq_factor, other.low_freq_factor);
    compare->of("high_freq_factor", serving.high_freq_factor, other.high_freq_factor);
    compare->of(
        "original_max_position_embeddings", serving.original_context, other.original_context
    );
    compare->of("beta_fast", serving.beta_fast, other.beta_fast);
    compare->of("beta_slow", serving.beta_slow, other.beta_slow);
    compare->of("truncate", serving.truncate, other.truncate);
    compare->of("attention_factor", serving.attention_factor, other.attention_factor);
    compare->of("partial_rotary_factor", serving.rotary_factor, other.rotary_factor);
}

void compare_delta(const DeltaConfig& serving, const DeltaConfig& other, Comparison* compare) {
    compare->of("linear_num_key_heads", serving.num_key_heads, other.num_key_heads);
    compare->of("linear_num_value_heads", serving.num_value_heads, other.num_value_heads);
    compare->of("linear_key_head_dim", serving.key_dim, other.key_dim);
    compare->of("linear_value_head_dim", serving.value_dim, other.value_dim);
    compare->of("linear_conv_kernel_dim", serving.kernel, other.kernel);
    compare->of(
        "the list of layers with linear_attention",
        fmt::format("{}", fmt::join(serving.layers, ",")),
        fmt::format("{}", fmt::join(other.layers, ","))
    );
}

}  // namespace

std::optional<std::string> difference_in_shape(
    const ModelConfig& serving, const ModelConfig& other
) {
    ModelConfig theirs = other;
    theirs.context_len = serving.context_len;
    theirs.eos_ids = serving.eos_ids;
    theirs.notes = serving.notes;
    if (theirs == serving) return std::nullopt;

    Comparison compare;
    compare.of("model_type", serving.model_type, other.model_type);
    compare.of("hidden_size", serving.hidden, other.hidden);
    compare.of("intermediate_size", serving.ffn, other.ffn);
    compare.of("num_hidden_layers", serving.num_layers, other.num_layers);
    compare.of("num_attention_heads", serving.num_q_heads, other.num_q_heads);
    compare.of("num_key_value_heads", serving.num_kv_heads, other.num_kv_heads);
    compare.of("head_dim", serving.head_dim, other.head_dim);
    compare.of("vocab_size", serving.vocab_len, other.vocab_len);
    compare.of("rms_norm_eps", serving.norm_eps, other.norm_eps);
    compare.of("tie_word_embeddings", serving.tied_embeddings, other.tied_embeddings);
    compare.of("attention_bias", serving.qkv_bias, other.qkv_bias);
    compare.of("the bias of o_proj", serving.o_bias, other.o_bias);
    compare.of("mlp_bias", serving.mlp_bias, other.mlp_bias);
    compare.of("the norm of queries and keys", serving.qk_norm, other.qk_norm);
    compare.of("num_experts", serving.experts.num, other.experts.num);
    compare.of("num_experts_per_tok", serving.experts.per_token, other.experts.per_token);
    compare.of("moe_intermediate_size", serving.experts.ffn, other.experts.ffn);
    compare.of(
        "shared_expert_intermediate_size", serving.experts.shared_ffn, other.experts.shared_ffn
    );
    compare.of("norm_topk_prob", serving.experts.norm_chosen, other.experts.norm_chosen);
    compare.of("decoder_sparse_step", serving.experts.sparse_step, other.experts.sparse_step);
    compare_delta(serving.delta, other.delta, &compare);
    compare_rope(serving.rope, other.rope, &compare);
    compare.of_windows(serving.windows, other.windows);
    // The configurations differ, so the difference is in a member without a name above.
    return compare.first().value_or("its configuration describes another computation");
}

}  // namespace pitstop::tp_worker
