// Computes the least bytes and flops that a model's step needs, to compare measured times with.
#pragma once

#include "base/result.h"
#include "bench/model_shape.h"
#include "bench/step_limits.h"

#include <string>

namespace pitstop::bench {

// Weights and KV in bf16, recurrent states in fp32, as a worker holds them.
struct ModelCost {
    double weight_bytes = 0;  // read by every step: all but an untied embedding and the experts
    double kv_bytes = 0;      // per token of context: written once, read by each later token
    double state_bytes = 0;   // of a request: read and written by each step
    double layer_flops = 0;   // per token: two per weight of the layers' matrices
    double head_flops = 0;    // per sampled token: two per weight of the output head
    double expert_bytes = 0;  // of one expert in all layers
    double experts = 0;       // per layer
    double chosen = 0;        // experts per token and layer; layer_flops counts their weights

    // Returns the bytes that a step of `tokens` reads at least. Experts count as if tokens chose
    // them independently, each equally often: experts * (1 - (1 - chosen / experts)^tokens) of a
    // layer are read.
    [[nodiscard]] double weights_read(double tokens) const;
};
[[nodiscard]] ModelCost cost_of(const ModelShape& shape);

// Reads config.json in a model directory. Errors: kNotFound, kMalformed, an unknown model_type.
[[nodiscard]] Result<ModelShape> read_shape(const std::string& directory);

// Returns the shortest possible time of a step that adds one token to each of `batch` requests with
// `context` tokens each: the time to move its bytes or to compute its products, if that is longer.
[[nodiscard]] double decode_step_seconds_min(
    const ModelCost& cost, const StepLimits& limits, double batch, double context
);

// Returns the shortest possible time of a prompt of `tokens`, alone.
[[nodiscard]] double prefill_seconds_min(
    const ModelCost& cost, const StepLimits& limits, double tokens
);

}  // namespace pitstop::bench
