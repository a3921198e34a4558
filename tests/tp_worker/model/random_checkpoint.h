// A checkpoint of small Qwen3 layers with random weights, for head sizes that no bundled model has,
// and for experts.
#pragma once

#include "tests/checkpoint/temp_dir.h"

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

struct CheckpointShape {
    std::int64_t hidden = 64;
    std::int64_t ffn = 96;
    std::int64_t num_q_heads = 4;
    std::int64_t num_kv_heads = 1;
    std::int64_t head_dim = 128;
    std::int64_t vocab_len = 2048;  // as batch_mix.h's requests need
    std::int64_t num_layers = 1;
    std::int64_t num_experts = 0;  // 0: a dense model
    std::int64_t num_experts_per_token = 0;
    std::int64_t expert_ffn = 0;
    std::int64_t shared_ffn = 0;
    bool norm_chosen = true;  // norm_topk_prob
    // The type of a hybrid model: qwen3_next, which has experts, or qwen3_5, which has none. Empty:
    // not a hybrid.
    std::string hybrid{};
    std::int64_t num_key_heads = 2;
    std::int64_t num_value_heads = 4;
    std::int64_t key_dim = 24;
    std::int64_t value_dim = 16;
    std::int64_t kernel = 4;
    std::vector<std::string> layer_types{};
};

// Writes config.json and model.safetensors. Logits are of order one.
void write_random_checkpoint(const CheckpointShape& shape, const test::TempDir& to);

}  // namespace pitstop::tp_worker
