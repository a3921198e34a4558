// Parses the body of OpenAI's /v1/completions. Only parses, without coroutines: the fuzz target
// runs it.
#pragma once

#include "base/result.h"
#include "http_proc/openai/options.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

inline constexpr std::size_t kPromptsMax = 4096;

struct OpenAiPrompt {
    std::optional<std::string> text{};  // exactly one of `text` and `ids`
    std::optional<std::vector<TokenId>> ids{};
};

struct OpenAiCompletions {
    OpenAiOptions options{};
    std::vector<OpenAiPrompt> prompts{};
    std::optional<std::int64_t> logprobs{};  // absent: none; 0: only of the sampled token
    bool is_echoed = false;                  // the prompt comes first
};

// Errors: kInvalidArgument, kMalformed: 400 with the text.
[[nodiscard]] Result<OpenAiCompletions> parse_openai_completions(std::string_view body);

}  // namespace pitstop::http
