// Answers shared by several of vLLM's routes.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

namespace pitstop::http {

[[nodiscard]] Response vllm_failure(const Error& error);
// A refusal of a text or a chat: 400, also if the model has no chat template.
[[nodiscard]] Response vllm_text_refusal(const Error& error);

}  // namespace pitstop::http
