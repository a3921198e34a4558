// Writes routes into answers (messages/routes.h), in the forms that trainers read.
#pragma once

#include "http_proc/format/json_writer.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>

namespace pitstop::http {

// Writes the members "routed_experts", SGLang's base64 of int32 [rows, layers, per_token];
// "routed_experts_start_len", the token of the first row; and "routed_experts_spans", [{"epoch",
// "start", "end"}], half-open over tokens. Of the `num_tokens` tokens of prompt and output, all
// from `start` on but the last have a row. If some were not computed because the request ended in
// its prefill, "routed_experts" is null.
void write_routed_experts(
    JsonWriter& json,
    const std::optional<messages::Routes>& routes,
    std::int64_t start,
    std::int64_t num_tokens
);

}  // namespace pitstop::http
