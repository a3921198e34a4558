#include "http_proc/openai/answer.h"

#include "http_proc/format/grammar_fields.h"
#include "http_proc/server/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::http {

OpenAiAnswer::OpenAiAnswer(Exchange& exchange, OpenAiOptions given, std::string_view prefix)
    : options(std::move(given)) {
    const messages::HelloReply& hello = exchange.tree().hello();
    const std::string caller = name_of_caller(exchange.request(), options.id);
    answer_id = std::string(prefix) + caller;
    model = options.model.empty() ? hello.model : options.model;
    created = ServerContext::unix_time();
    is_held = has_grammar(options.sampling);
    eos_ids = hello.eos_ids;
    route_shape = hello.routes;
    names = {answer_id, caller};
}

std::string OpenAiAnswer::rid_of(std::size_t index) const {
    return fmt::format("{}-{}", answer_id, index);
}

Prompt OpenAiAnswer::prompt() const {
    Prompt prompt{.request = options.request(), .num_samples = options.n};
    prompt.request.logprobs = logprobs.asked;
    return prompt;
}

void OpenAiAnswer::write_head(JsonWriter& json, std::string_view object) const {
    json.begin_object().key("id").string(answer_id).key("object").string(object);
    json.key("created").integer(created).key("model").string(model);
}

void OpenAiAnswer::take_routes(std::size_t index, messages::OutputChunk& chunk) {
    routes[index].usage.add(chunk);
    routes[index].rows.append(std::move(chunk.routes));
}

void OpenAiAnswer::write_choice_routes(JsonWriter& json, std::size_t index, bool is_last) {
    ChoiceRoutes& choice = routes[index];
    if (options.routes.form == RoutesForm::kSglang || !choice.rows.has_part(is_last)) return;
    const std::int64_t num_tokens = choice.usage.prompt_tokens + choice.usage.completion_tokens;
    choice.rows.write(json, num_tokens, is_last);
}

void OpenAiAnswer::write_sglext(JsonWriter& json, std::size_t index, bool is_last) {
    ChoiceRoutes& choice = routes[index];
    if (options.routes.form != RoutesForm::kSglang || !choice.rows.has_part(is_last)) return;
    const std::int64_t num_tokens = choice.usage.prompt_tokens + choice.usage.completion_tokens;
    json.key("sglext").begin_object();
    choice.rows.write(json, num_tokens, is_last);
    json.end_object();
}

void OpenAiAnswer::write_usage_event(
    EventStream& stream, std::string_view object, const Usage& usage
) const {
    if (!options.wants_usage) return;
    JsonWriter& json = stream.begin_event();
    write_head(json, object);
    write_last_usage(json, usage);
    stream.end_event();
}

ShownLogprobs shown_logprobs(
    const OpenAiOptions& options, bool is_enabled, std::int64_t top, std::int64_t vocab_size
) {
    const auto all_of = [&](std::int64_t num) { return num == kAllLogprobs ? vocab_size : num; };
    ShownLogprobs shown;
    shown.output_top = all_of(top);
    shown.prompt_top = all_of(options.prompt_logprobs.value_or(0));
    messages::LogprobOptions& asked = shown.asked;
    asked.mode = options.logprobs_mode;
    asked.enabled = is_enabled || options.prompt_logprobs;
    asked.top = std::max(shown.output_top, shown.prompt_top);
    if (options.prompt_logprobs) asked.prompt_start = 0;
    return shown;
}

Result<> finish_routes(const Exchange& exchange, std::int64_t num_choices, OpenAiOptions& options) {
    using VllmRoutes = ServerOptions::VllmRoutes;
    RoutesAsked& asked = options.routes;
    const VllmRoutes served = exchange.server().options().vllm_routes;
    const bool has_experts = exchange.tree().hello().routes.has_value();
    if (!asked.start && served != VllmRoutes::kOnRequest && has_experts) {
        asked.start = 0;
        asked.form = RoutesForm::kNumpy;
    }
    if (asked.form == RoutesForm::kNumpy && served == VllmRoutes::kEnvelope)
        asked.form = RoutesForm::kEnvelope;
    const auto wrong = [](std::string_view what) {
        return make_error(ErrorCode::kInvalidArgument, "{}", what);
    };
    if (asked.is_streamed && !asked.start) {
        return wrong(
            "stream_routed_experts is true, but the answer has no routed experts; set "
            "return_routed_experts or routed_experts_prompt_start, too"
        );
    }
    if (asked.start && asked.form == RoutesForm::kSglang && num_choices > 1) {
        return wrong(
            "return_routed_experts is for one choice, because the answer has one sglext; for "
            "several choices, set routed_experts_prompt_start: each choice then has its own"
        );
    }
    return Ok{};
}

Response openai_refusal(const Error& error) {
    const int status = error.code == ErrorCode::kAlreadyExists ? 400 : status_of(error.code);
    return error_response(Dialect::kOpenAi, status, error);
}

}  // namespace pitstop::http
