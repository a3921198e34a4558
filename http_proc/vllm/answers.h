// Answers shared by several of vLLM's routes.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

namespace pitstop::http {

[[nodiscard]] Response vllm_failure(const Error& error);
// A chat for a model without a template for it is answered with 400, too.
[[nodiscard]] Response vllm_text_refusal(const Error& error);

}  // namespace pitstop::http
