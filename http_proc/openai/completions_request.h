// Parses the body of OpenAI's /v1/completions. Has no coroutines, so that a fuzz target can run
// it.
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
    std::optional<std::string> text{};  // either `text` or `ids` is set
    std::optional<std::vector<TokenId>> ids{};
    std::string adapter{};  // by `lora_path`; empty: none
};

struct OpenAiCompletions {
    OpenAiOptions options{};
    std::vector<OpenAiPrompt> prompts{};
    std::optional<std::int64_t> logprobs{};  // absent: no logprobs; 0: of the sampled token only
    bool is_echoed = false;                  // the answer begins with the prompt
};

// Errors: kInvalidArgument or kMalformed, which become status 400 with the text.
[[nodiscard]] Result<OpenAiCompletions> parse_openai_completions(std::string_view body);

}  // namespace pitstop::http
