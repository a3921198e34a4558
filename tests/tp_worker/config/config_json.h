// Configurations that tests write and change.
#pragma once

#include "tp_worker/config/model_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace pitstop::tp_worker {

using Json = nlohmann::json;

inline Json qwen3() {
    return Json::parse(R"({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "rope_theta": 1000000.0, "tie_word_embeddings": true,
        "eos_token_id": 7})");
}

inline Json of_family(const std::string& architecture) {
    Json json = qwen3();
    json["architectures"] = {architecture};
    json.erase("model_type");
    return json;
}

inline Result<ModelConfig> parse(const Json& json, const std::string& generation = "") {
    return ModelConfig::parse(json.dump(), generation, "model");
}

inline Error error_of(const Json& json) {
    const Result<ModelConfig> config = parse(json);
    return config ? Error{ErrorCode::kInternal, "parsed"} : config.error();
}

inline void expect_refused(const Json& json, ErrorCode code, std::string_view part) {
    const Error error = error_of(json);
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
}

}  // namespace pitstop::tp_worker
