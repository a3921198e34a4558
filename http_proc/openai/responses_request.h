// Parses the bodies of OpenAI's /v1/responses and /v1/responses/input_tokens. It does nothing else
// and has no coroutines: the fuzz target runs it.
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
    // Asks for logprobs of the text, with so many of the top tokens beside each, -1 for all.
    std::optional<std::int64_t> top_logprobs{};
    // Holds what an answer gives back of its request, as it is served: names and JSON, in order.
    std::vector<std::pair<std::string_view, std::string>> shown{};
};

// Errors: kInvalidArgument, kMalformed: 400 with the text.
[[nodiscard]] Result<OpenAiResponses> parse_openai_responses(std::string_view body);

}  // namespace pitstop::http
