// Writes the supports of draws (messages/supports.h) into answers, in the forms that trainers read:
//
//   SGLang's  "output_token_sampling_mask" (ids per token), "output_token_sampling_logprobs"
//   vLLM's    "sampling_mask": the same list of lists
//   SkyRL's   "rollout_sample_support": {"data", "shape", "dtype"}, base64 of int32 [n, top_k],
//             padded with -1
// Sources: SGLang's tokenizer_manager, vLLM's generate protocol, SkyRL's generate_wire.
#pragma once

#include "base/result.h"
#include "http_proc/format/json_writer.h"
#include "messages/supports.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::http {

// Appends the entries of the list: "[1,2],[3]".
void append_masks(std::string& to, const messages::Supports& supports);

// Returns the error of a support with more than `top_k` tokens, which SkyRL's rows cannot show:
// SkyRL reads rows of top_k. Nothing if all supports fit.
[[nodiscard]] std::optional<Error> error_of_wide_support(
    const messages::Supports& supports, std::int64_t top_k
);

// Writes SkyRL's value. REQUIRES: each support has at most `top_k` tokens.
void write_packed_support(JsonWriter& json, const messages::Supports& supports, std::int64_t top_k);

}  // namespace pitstop::http
