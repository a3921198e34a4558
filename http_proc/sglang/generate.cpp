// Serves SGLang's /generate: turns bodies into prompts, and chunks into answers (output.h).
#include "http_proc/format/grammar_fields.h"
#include "http_proc/generation/pipeline.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/generate_request.h"
#include "http_proc/sglang/output.h"
#include "http_proc/sglang/routes.h"

#include <optional>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

// Decides at which counts of tokens a request gets an event. With interval k: at 1, k + 1, 2k + 1,
// ...
class Interval {
  public:
    explicit Interval(std::int64_t interval) : interval_(interval) {}
    bool is_due(std::int64_t num_tokens) {
        if (num_tokens < next_) return false;
        next_ = num_tokens + interval_ - (num_tokens - 1) % interval_;
        return true;
    }

  private:
    std::int64_t interval_;
    std::int64_t next_ = 1;
};

struct SglangAnswer {
    static constexpr Dialect kDialect = Dialect::kSglang;

    SglangGenerate call{};
    std::vector<Prompt> prompts{};
    std::vector<std::string> names{};
    std::optional<messages::RouteShape> route_shape{};  // the model's
    const TokenTexts* texts = nullptr;
    TimePoint start = Clock::now();
    std::vector<SglangOutput> outputs{};  // by sample
    std::vector<Interval> intervals{};    // by sample

    static Result<SglangAnswer> parse(Exchange& exchange);

    // As in SGLang, a rid in use and an adapter that is not loaded are the caller's mistakes.
    static Response refusal(const Error& error) {
        if (error.code == ErrorCode::kNotFound) return error_response(kDialect, 400, error.message);
        if (error.code != ErrorCode::kAlreadyExists) return error_response(kDialect, error);
        return error_response(kDialect, 400, "Duplicate request ID detected: " + error.message);
    }

    bool is_streamed() const { return call.is_streamed; }
    bool wants_texts() const { return call.wants_text_in_logprobs; }
    static std::string rid_of(std::size_t /*index*/) { return Tree::random_id(); }
    static Task<Result<>> complete(Exchange& exchange, Prompt& prompt);
    void add_sample(std::size_t prompt, const messages::Generate& request);

    bool handle_event(Generation::Event& event) {
        SglangOutput& output = outputs[event.index];
        output.append(std::move(event.chunk));
        return intervals[event.index].is_due(output.num_tokens()) || output.is_done();
    }
    bool lacks_version(std::size_t index) const { return outputs[index].lacks_version(); }
    void set_version(std::size_t index, messages::Span version) {
        outputs[index].set_version(std::move(version));
    }
    void write_events(EventStream& stream, const Generation::Event& event) {
        outputs[event.index].write(stream.begin_event());
        stream.end_event();
    }
    static void write_end(EventStream& /*stream*/) {}
    void write_whole(JsonWriter& json, const std::vector<messages::OutputChunk>& /*taken*/) {
        if (call.answers_list()) json.begin_array();
        for (SglangOutput& output : outputs) output.write(json);
        if (call.answers_list()) json.end_array();
    }
};

Result<SglangAnswer> SglangAnswer::parse(Exchange& exchange) {
    SglangAnswer answer;
    ASSIGN_OR_RETURN(answer.call, parse_sglang_generate(exchange.request().body));
    SglangGenerate& call = answer.call;
    for (const auto& [field, ids] : call.unused_ids)
        RETURN_IF_ERROR(check_tokens(exchange, field, ids));
    if (exchange.server().options().is_incremental) call.is_incremental = true;
    answer.route_shape = exchange.tree().hello().routes;
    if (!call.batch_rid.empty()) answer.names.push_back(call.batch_rid);
    for (std::size_t i = 0; i < call.given_routes.size(); ++i) {
        if (!call.given_routes[i]) continue;
        ASSIGN_OR_RETURN(
            call.prompts[i].routed_experts,
            brought_routes(*call.given_routes[i], answer.route_shape)
        );
    }
    call.given_routes.clear();
    for (messages::Generate& request : call.prompts) {
        const bool is_shown = call.wants_prompt_token_ids || request.logprobs.prompt_start;
        const bool is_turn = request.turn.has_value();
        if (is_turn) request.turn->wants_prompt = is_shown;
        std::string rid = std::exchange(request.rid, {});
        answer.prompts.push_back(
            {.request = std::move(request),
             .name = std::move(rid),
             .num_samples = call.samples,
             .num_kept = is_shown && !is_turn ? call.samples : 0,
             .session = call.session_id}
        );
    }
    call.prompts.clear();
    return answer;
}

// Replaces a prompt by its tokens, if the answer shows them.
Task<Result<>> SglangAnswer::complete(Exchange& exchange, Prompt& prompt) {
    if (prompt.num_kept == 0) co_return Ok{};
    const Result<> tokenized = co_await tokenize_prompt(exchange, prompt.request);
    if (!tokenized) co_return tokenized.error();
    const auto prompt_len = static_cast<std::int64_t>(prompt.request.input_ids->size());
    const std::int64_t start = prompt.request.logprobs.prompt_start.value_or(0);
    if (start <= prompt_len) co_return Ok{};
    co_return make_error(
        ErrorCode::kInvalidArgument,
        "logprob_start_len is {}; the prompt has {} tokens",
        start,
        prompt_len
    );
}

void SglangAnswer::add_sample(std::size_t prompt, const messages::Generate& request) {
    const bool is_indexed = call.is_streamed && call.answers_list();
    const bool is_shown = prompts[prompt].num_kept > 0;
    outputs.emplace_back(SglangOutput::Args{
        .rid = request.rid,
        .logprobs = request.logprobs,
        .shows_logprobs_mode = call.names_logprobs_mode || has_grammar(request.sampling),
        .prompt_ids = is_shown ? *request.input_ids : std::vector<TokenId>{},
        .max_new_tokens = request.sampling.max_new_tokens,
        .routes =
            {.start = request.routed_experts_start,
             .form = RoutesForm::kSglang,
             .is_streamed = call.streams_routes},
        .route_shape = route_shape,
        .shows_prompt_ids = call.wants_prompt_token_ids,
        .is_turn = request.turn.has_value(),
        .is_incremental = call.is_streamed && call.is_incremental,
        .index = is_indexed ? std::optional(outputs.size()) : std::nullopt,
        .texts = texts,
        .start = start,
    });
    intervals.emplace_back(call.stream_interval);
}

}  // namespace

void add_sglang_generate(Router& router) {
    router.add(Dialect::kSglang, Access::kData, {{"POST, PUT", "/generate", serve<SglangAnswer>}});
}

}  // namespace pitstop::http
