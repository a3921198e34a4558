// The answers that several of vLLM's routes share.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/format/message.h"

#include <nlohmann/json_fwd.hpp>

#include <span>

namespace pitstop::http {

[[nodiscard]] Response vllm_failure(const Error& error);
// Answers the refusal of a load: 400 for whatever is wrong with the adapter or leaves no room for
// it, because clients repeat a call after 5xx. Another status says that the tree is not serving.
[[nodiscard]] Response vllm_load_failure(const Error& error);
// Answers the refusal of a text or a chat: 400, even if the model has no chat template.
[[nodiscard]] Response vllm_text_refusal(const Error& error);

// Returns the tokens as a list of numbers.
[[nodiscard]] nlohmann::ordered_json ids_json(std::span<const TokenId> ids);

}  // namespace pitstop::http
