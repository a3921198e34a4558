// Writes a Hugging Face model directory with random weights: config.json, generation_config.json,
// tokenizer.json, tokenizer_config.json, and model.safetensors or an index with shards.
//
// Source: https://github.com/huggingface/safetensors#format
#pragma once

#include "base/result.h"
#include "bench/model_shape.h"
#include "bench/random_tensor.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::bench {

inline constexpr int kShardsMax = 1000;
inline constexpr int kWriterThreadsMax = 256;

struct CheckpointArgs {
    ModelShape shape{};  // REQUIRES: valid
    std::string directory{};
    std::uint64_t seed = 0;
    WeightDtype dtype = WeightDtype::kBf16;
    int shards = 1;  // 1: model.safetensors; more: files of about equal size and an index
    int threads = 1;
    std::optional<Perturbation> perturbation{};
};

// Returns the bytes of tensor data. Errors: the directory cannot be made or is not empty, a
// write failed (the disk is full), more shards than tensors. After an error the files written
// so far remain.
Result<std::int64_t> write_checkpoint(const CheckpointArgs& args);

}  // namespace pitstop::bench
