// The families of models. A row describes one family: its names, how its config.json differs from
// others', and the blocks of its layers. Blocks determine the computation and the weights
// (tp_worker/blocks).
#pragma once

#include "tp_worker/config/config_reader.h"
#include "tp_worker/config/model_config.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace pitstop::tp_worker {

struct Family {
    std::string_view model_type{};    // as in config.json: "qwen3"
    std::string_view architecture{};  // as in config.json: "Qwen3ForCausalLM"

    // The names of the text model, for a family whose configurations may contain a vision model.
    // Such a config.json has the text model's keys in text_config. A config.json of the text model
    // alone is also accepted. Empty: the family has no vision model.
    std::string_view text_type{};
    std::string_view text_architecture{};

    // The value of num_key_value_heads if the key is absent; empty: as many as query heads.
    std::optional<std::int64_t> absent_kv_heads{};
    bool has_null_kv_heads = true;  // null means as many as query heads; false: null is refused
    // The value of head_dim if the key is absent; empty: hidden_size / num_attention_heads. Some
    // families require that quotient to be a whole number.
    std::optional<std::int64_t> absent_head_dim{};
    bool needs_whole_head_dim = false;

    enum class Window : std::uint8_t {
        kNone,              // a sliding_window with an effect is refused
        kOfAll,             // for all layers
        kIfAsked,           // with use_sliding_window, for layers from max_window_layers on
        kOfAllIfAsked,      // with use_sliding_window, for all layers
        kAlternateIfAsked,  // with use_sliding_window, every other layer below max_window_layers
    };
    Window window = Window::kNone;
    bool has_null_window = false;   // no window if sliding_window is absent
    bool reads_layer_types = true;  // false: layer_types must agree with the window's keys
    std::optional<double> absent_rope_theta{};
    // The value of partial_rotary_factor if the key is absent; empty: only 1 is supported.
    std::optional<double> absent_rotary_factor{};
    double absent_norm_eps = 1e-6;
    // kByKey: attention_bias gives q, k, v and o a bias. kByOwnKey: qkv_bias gives q, k and v one.
    enum class QkvBias : std::uint8_t { kNever, kAlways, kByKey, kByOwnKey };
    QkvBias qkv_bias = QkvBias::kNever;
    bool has_mlp_bias = false;  // has a key mlp_bias
    bool has_qk_norm = false;
    bool has_ffn = true;             // has a key intermediate_size
    bool is_hybrid = false;          // has gated delta nets, and their keys
    bool has_grouped_delta = false;  // DeltaConfig::is_grouped

    // Reads the parameters of the family's blocks of experts; null: the family has no experts.
    void (*read_experts)(ConfigReader& reader, ModelConfig* config) = nullptr;
    // Returns the blocks of one layer, in order. REQUIRES: the configuration is read except
    // for its layers.
    LayerBlocks (*blocks_of)(const ModelConfig& config, std::int64_t layer) = nullptr;
};

[[nodiscard]] std::span<const Family> families();

}  // namespace pitstop::tp_worker
