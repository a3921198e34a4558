// Parses the bodies of OpenAI's /v1/responses and /v1/responses/input_tokens. Has no coroutines, so
// that a fuzz target can run it.
//
// Source: OpenAI's API reference, "Create a model response".
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_call.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {

struct OpenAiResponses {
    ChatCall call{};
    // Requests logprobs of the text, with this many top tokens per position; -1: all tokens.
    std::optional<std::int64_t> top_logprobs{};
    // Members of the request that the answer repeats, with the values in effect: names and JSON, in
    // order.
    std::vector<std::pair<std::string_view, std::string>> shown{};
};

// Errors: kInvalidArgument or kMalformed, which become status 400 with the text. `reads_calls`: the
// server knows a format of calls, so `strict` has an effect.
[[nodiscard]] Result<OpenAiResponses> parse_openai_responses(
    std::string_view body, bool reads_calls = false
);

}  // namespace pitstop::http
