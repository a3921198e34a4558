// The answers that several of vLLM's routes share.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

namespace pitstop::http {

[[nodiscard]] Response vllm_failure(const Error& error);
// Answers the refusal of a text or a chat: 400, even if the model has no chat template.
[[nodiscard]] Response vllm_text_refusal(const Error& error);

}  // namespace pitstop::http
