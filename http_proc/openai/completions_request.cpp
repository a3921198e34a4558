#include "http_proc/openai/completions_request.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/thinking_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxTokensDefault = 16;

std::optional<OpenAiPrompt> prompt_of(const Json& value) {
    OpenAiPrompt prompt;
    if (value.is_string()) {
        prompt.text = value.get<std::string>();
        return prompt;
    }
    if (!value.is_array()) return std::nullopt;
    prompt.ids.emplace();
    for (const Json& entry : value) {
        const auto id = token_of(entry);
        if (!id) return std::nullopt;
        prompt.ids->push_back(*id);
    }
    return prompt;
}

// Reads a string, a list of tokens, or a list of strings or of lists of tokens.
void read_prompts(FieldReader& fields, std::vector<OpenAiPrompt>& prompts) {
    constexpr std::string_view kAccepted =
        "a string, a list of strings, a list of token ids, or a list of such lists";
    const Json* given = fields.find("prompt");
    if (given == nullptr) return fields.fail("prompt", kAccepted);
    const bool is_list = given->is_array() && !given->empty() && !given->front().is_number();
    if (is_list && given->size() > kPromptsMax)
        return fields.fail("prompt", fmt::format("a list of at most {}", kPromptsMax));
    const auto add = [&](const Json& value) {
        auto prompt = prompt_of(value);
        if (!prompt) return fields.fail("prompt", kAccepted);
        const bool is_empty = prompt->text ? prompt->text->empty() : prompt->ids->empty();
        if (is_empty) return fields.fail("prompt", "at least one token in each prompt");
        prompts.push_back(*std::move(prompt));
    };
    if (!is_list) return add(*given);
    for (const Json& value : *given) add(value);
}

// Reads SGLang's lora_path: one for all prompts, or a list with a name or null for each.
void read_lora_paths(FieldReader& fields, std::vector<OpenAiPrompt>& prompts) {
    const Json* given = fields.find("lora_path");
    if (given == nullptr) return;
    if (given->is_array() && given->size() != prompts.size()) {
        return fields.fail(
            "lora_path", fmt::format("for {} prompts a list of as many entries", prompts.size())
        );
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        const Json& name = given->is_array() ? (*given)[i] : *given;
        if (name.is_null()) continue;
        if (!name.is_string())
            return fields.fail("lora_path", "an adapter's name or null, or a list of them");
        prompts[i].adapter = name.get<std::string>();
    }
}

}  // namespace

Result<OpenAiCompletions> parse_openai_completions(std::string_view body) {
    ASSIGN_OR_RETURN(const Json json, parse_json_object(body));
    FieldReader fields(json);
    OpenAiCompletions call;
    OpenAiOptions& options = call.options;
    options.sampling.max_new_tokens = kMaxTokensDefault;
    read_prompts(fields, call.prompts);
    read_openai_options(fields, options);
    read_lora_paths(fields, call.prompts);
    read_response_format(fields, body, options.sampling);
    read_structured_outputs(fields, body, "", options.sampling);
    refuse_thinking_fields(fields);
    refuse_sampling_mask(fields);
    fields.read("logprobs", call.logprobs);
    fields.read("echo", call.is_echoed);
    bool adds_special = true;
    fields.read("add_special_tokens", adds_special);
    const bool has_text = std::ranges::any_of(call.prompts, [](const OpenAiPrompt& prompt) {
        return prompt.text.has_value();
    });
    if (!adds_special && has_text)
        fields.refuse(
            "add_special_tokens", "false is accepted by /tokenize; send its tokens as the prompt"
        );
    if (const Json* given = fields.find("suffix"); given != nullptr && *given != "")
        fields.refuse("suffix", "the model continues text; it does not fill in");
    std::int64_t best_of = options.n;
    fields.read("best_of", best_of);
    if (best_of != options.n) fields.refuse("best_of", "every sample is returned");
    check_lengths(fields, "max_tokens", options.sampling);
    check_top_logprobs(fields, "logprobs", call.logprobs);
    if (options.is_streamed && options.prompt_logprobs.value_or(0) != 0)
        fields.refuse("prompt_logprobs", "a stream accepts only 0");
    if (!fields.error() &&
        call.prompts.size() * static_cast<std::size_t>(options.n) > 2 * kPromptsMax)
        fields.fail("n", fmt::format("at most {} samples in all", 2 * kPromptsMax));
    if (fields.error()) return *fields.error();
    if (auto problem = messages::invalid(options.sampling))
        return make_error(ErrorCode::kInvalidArgument, "{}", *problem);
    return call;
}

}  // namespace pitstop::http
