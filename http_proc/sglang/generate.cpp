// SGLang's /generate: parse, tokenize where the answer shows the prompt's tokens, run, render.
#include "http_proc/generation/event_stream.h"
#include "http_proc/generation/generation.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/generate_request.h"
#include "http_proc/sglang/output.h"
#include "http_proc/sglang/routes.h"

#include <optional>
#include <utility>
#include <vector>

namespace pitstop {
namespace {

// A rid in use is the caller's mistake, as in SGLang.
Response refusal(const Error& error) {
    if (error.code == ErrorCode::kAlreadyExists) {
        return error_response(
            Dialect::kSglang, 400, "Duplicate request ID detected: " + error.message
        );
    }
    return error_response(Dialect::kSglang, error);
}

struct Prepared {
    std::vector<Generate> requests{};  // prompts times samples, the samples of a prompt together
    std::vector<SglangOutput> outputs{};
    std::vector<std::string> names{};
};

Result<> check_prompt_start(const Generate& prompt) {
    const auto prompt_len = static_cast<std::int64_t>(prompt.input_ids->size());
    if (prompt.logprobs.prompt_start <= prompt_len) return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "logprob_start_len is {}; the prompt has {} tokens",
        prompt.logprobs.prompt_start,
        prompt_len
    );
}

Task<Result<Prepared>> prepare(Exchange& exchange, SglangGenerate call) {
    const TimePoint start = Clock::now();
    const TokenTexts* texts = nullptr;
    if (call.wants_text_in_logprobs) {
        const Result<> loaded = co_await exchange.tree().token_texts().load(exchange.tree());
        if (!loaded) co_return loaded.error();
        texts = &exchange.tree().token_texts();
    }
    Prepared prepared;
    if (!call.batch_rid.empty()) prepared.names.push_back(call.batch_rid);
    for (Generate& prompt : call.prompts) {
        const bool shows_prompt = call.wants_prompt_token_ids || prompt.logprobs.prompt_start >= 0;
        if (shows_prompt) {
            const Result<> tokenized = co_await tokenize_prompt(exchange, prompt);
            if (!tokenized) co_return tokenized.error();
            if (auto checked = check_prompt_start(prompt); !checked) co_return checked.error();
        }
        const std::int64_t num_kept = shows_prompt ? call.samples : 0;
        const Result<> held =
            exchange.hold(prompt, {.num_copies = call.samples, .num_kept = num_kept});
        if (!held) co_return held.error();
        if (call.samples > 1 && !prompt.rid.empty())
            prepared.names.push_back(std::exchange(prompt.rid, {}));
        for (std::int64_t sample = 0; sample < call.samples; ++sample) {
            Generate request = prompt;
            if (request.rid.empty()) request.rid = Tree::random_id();
            // Samples that shared a seed would all be the same.
            if (request.sampling.seed) *request.sampling.seed += static_cast<std::uint64_t>(sample);
            const std::size_t index = prepared.outputs.size();
            prepared.outputs.emplace_back(SglangOutput::Args{
                .rid = request.rid,
                .logprobs = request.logprobs,
                .prompt_ids = shows_prompt ? *request.input_ids : std::vector<TokenId>{},
                .shows_prompt_ids = call.wants_prompt_token_ids,
                .is_incremental = call.is_streamed && call.is_incremental,
                .index =
                    call.is_streamed && call.answers_list() ? std::optional(index) : std::nullopt,
                .texts = texts,
                .start = start,
            });
            prepared.requests.push_back(std::move(request));
        }
    }
    co_return prepared;
}

// What an abort of some of it may name (preparations.h).
std::vector<std::string> ids_of(const SglangGenerate& call) {
    std::vector<std::string> ids;
    if (!call.batch_rid.empty()) ids.push_back(call.batch_rid);
    for (const Generate& prompt : call.prompts) {
        if (!prompt.rid.empty()) ids.push_back(prompt.rid);
    }
    return ids;
}

Task<> complete_version(Exchange& exchange, SglangOutput& output) {
    if (!output.lacks_version()) co_return;
    const Result<StatusReply> status = co_await exchange.tree().call(Status{});
    if (!status) co_return;
    const ReplicaStatus& replica = status->replicas.front();
    output.set_version(
        {.epoch = replica.epoch,
         .label = replica.label,
         .digest = replica.digest,
         .tokens = 0,
         .kv_min_epoch = replica.epoch,
         .kv_max_epoch = replica.epoch}
    );
}

Task<Response> answer_whole(
    Exchange& exchange, Generation& generation, std::vector<SglangOutput>& outputs, bool is_list
) {
    while (auto event = co_await generation.next()) {
        if (const auto error = error_of(event->chunk)) co_return refusal(*error);
        outputs[event->index].take(std::move(event->chunk));
    }
    JsonWriter json;
    if (is_list) json.begin_array();
    for (SglangOutput& output : outputs) {
        co_await complete_version(exchange, output);
        output.write(json);
    }
    if (is_list) json.end_array();
    co_return Response::json_text(200, json.take());
}

// Whether a request with so many tokens gets an event: with interval k at 1, k + 1, 2k + 1, ...
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

Task<Response> answer_streamed(
    Exchange& exchange,
    Generation& generation,
    std::vector<SglangOutput>& outputs,
    std::int64_t interval
) {
    std::vector<Interval> intervals(outputs.size(), Interval(interval));
    EventStream stream(exchange);
    while (auto event = co_await generation.next()) {
        if (const auto error = error_of(event->chunk)) {
            if (!stream.has_begun()) co_return refusal(*error);
            stream.add_error(Dialect::kSglang, *error);
            break;
        }
        SglangOutput& output = outputs[event->index];
        output.take(std::move(event->chunk));
        if (intervals[event->index].is_due(output.num_tokens()) || output.is_done()) {
            co_await complete_version(exchange, output);
            output.write(stream.begin_event());
            stream.end_event();
        }
        if (!co_await stream.send(generation.has_more_now())) co_return Response::streamed();
    }
    co_await stream.end();
    co_return Response::streamed();
}

Task<Response> generate(Exchange& exchange) {
    Result<SglangGenerate> call = parse_sglang_generate(exchange.request().body);
    if (!call) co_return refusal(call.error());
    const bool is_streamed = call->is_streamed;
    const bool is_list = call->answers_list();
    const std::int64_t interval = call->stream_interval;
    if (exchange.server().options().is_incremental) call->is_incremental = true;
    Preparations::Entry preparation = exchange.tree().preparations().begin(ids_of(*call));
    Result<Prepared> prepared = co_await prepare(exchange, *std::move(call));
    if (!prepared) co_return refusal(prepared.error());

    Generation generation(exchange);
    generation.start(
        std::move(preparation), std::move(prepared->requests), std::move(prepared->names)
    );
    if (is_streamed)
        co_return co_await answer_streamed(exchange, generation, prepared->outputs, interval);
    co_return co_await answer_whole(exchange, generation, prepared->outputs, is_list);
}

}  // namespace

void add_sglang_generate(Router& router) {
    router.add(
        {.methods = "POST, PUT",
         .path = "/generate",
         .dialect = Dialect::kSglang,
         .access = Access::kData,
         .handler = generate}
    );
}

}  // namespace pitstop
