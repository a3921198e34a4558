// Serves every generating route, in all dialects:
//
//   parse -> questions to the tree about the prompts -> a request per sample -> chunks
//         -> written event by event, or as a whole
//
// A dialect is a type that parses a request and writes chunks in its shape (Answering, below). The
// steps in between are the same for all dialects. The handler of a dialect's route is serve<Type>.
//
// Thread:  the server's loop.
// Bounded: an answer takes the memory that it keeps for prompts from the server's budget.
#pragma once

#include "http_proc/format/batch.h"
#include "http_proc/generation/event_stream.h"
#include "http_proc/generation/generation.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/server/errors.h"
#include "messages/generation.h"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {

// One prompt of an HTTP request, with the data that its samples share.
struct Prompt {
    messages::Generate
        request{};  // with the first sample's seed. If rid is empty, the answer names each sample
    // The caller's unique name for the prompt; empty: none. A single sample uses it as its rid. If
    // there are several, sample i has the rid NAME_i, and NAME aborts all of them.
    std::string name{};
    std::int64_t num_samples = 1;
    std::int64_t num_kept = 0;  // copies of the prompt that the answer keeps, to show at its end
    // bytes of other parts of the request that the answer keeps to its end
    std::size_t kept_bytes = 0;
    std::string session{};  // the session that the body names; empty: the header's, if any
};

// The functions of a dialect. A dialect also has the members `prompts`, `names` (each name aborts
// all of its requests) and `texts` (of tokens; null unless wants_texts() is true).
template <class A>
concept Answering = requires(
    A answer,
    Exchange& exchange,
    Prompt& prompt,
    Generation::Event& event,
    EventStream& stream,
    std::vector<messages::OutputChunk>& outputs,
    JsonWriter& json,
    const Error& error
) {
    { A::kDialect } -> std::convertible_to<Dialect>;
    { A::parse(exchange) } -> std::same_as<Result<A>>;
    { A::refusal(error) } -> std::same_as<Response>;
    { answer.is_streamed() } -> std::same_as<bool>;
    { answer.wants_texts() } -> std::same_as<bool>;
    // Optional: answer.named_model() returns the model that the caller named.
    // Optional: answer.problem_of(chunk) returns why the answer cannot show the chunk.
    //
    // Asks the tree for the prompt's tokens or text, if the answer shows them or the prompt needs
    // them.
    { answer.complete(exchange, prompt) } -> std::same_as<Task<Result<>>>;
    // Returns a rid for request `i`, whose prompt has no name.
    { answer.rid_of(std::size_t{}) } -> std::same_as<std::string>;
    // Called before a sample of prompts[i] runs, in the order of the samples.
    answer.add_sample(std::size_t{}, std::as_const(prompt.request));
    // Counts a chunk. Returns whether its request gets an event now.
    { answer.handle_event(event) } -> std::same_as<bool>;
    answer.write_events(stream, std::move(event));
    answer.write_whole(json, outputs);  // handle_event() has counted each chunk
    // Writes the last events of a stream. A dialect with named events ends its stream itself, and
    // writes events for an error.
    requires requires { answer.write_end(stream); } || requires {
        answer.write_error(stream, error);
    };
};

// Asks the tree for the version that serves now; nothing if the tree does not answer.
[[nodiscard]] Task<std::optional<messages::Span>> serving_version(Exchange& exchange);

namespace pipeline {

// Returns the turn of a request that only names its session, in the body or in X-Session-ID (of
// vLLM's routers and SkyRL); nothing if it names none. Errors: kInvalidArgument: too long a name.
[[nodiscard]] Result<std::optional<messages::Turn>> turn_of_session(
    const Request& request, const std::string& session
);

// Returns the names by which an abort may end a part of the answer (preparations.h).
template <Answering A>
std::vector<std::string> abort_names(const A& answer) {
    std::vector<std::string> names = answer.names;
    for (const Prompt& prompt : answer.prompts) {
        if (!prompt.request.rid.empty()) names.push_back(prompt.request.rid);
        if (!prompt.name.empty()) names.push_back(prompt.name);
    }
    return names;
}

// The requests of an answer.
struct Prepared {
    std::vector<messages::Generate> requests{};
    // by request: other names than its rid that abort it
    std::vector<std::vector<std::string>> names{};
    std::vector<std::string> own_names{};  // chosen by the caller: must be unique
    Batch batch{};
};

// Names a sample of a named prompt. Returns the names, other than its rid, that abort it.
[[nodiscard]] std::vector<std::string> name_sample(
    const Prompt& prompt, std::int64_t sample, messages::Generate& request
);

// Errors: kAlreadyExists if a caller's name already names another open request.
[[nodiscard]] Result<> check_names(Exchange& exchange, const Prepared& prepared);

// Makes a request per sample; the samples of a prompt are neighbours. Moves from the prompts'
// requests.
template <Answering A>
Task<Result<Prepared>> prepare(Exchange& exchange, A& answer) {
    if (answer.wants_texts()) {
        const Result<> loaded = co_await exchange.tree().token_texts().load(exchange.tree());
        if (!loaded) co_return loaded.error();
        answer.texts = &exchange.tree().token_texts();
    }
    Prepared prepared;
    prepared.batch.num_prompts = answer.prompts.size();
    std::vector<messages::Generate>& requests = prepared.requests;
    for (std::size_t p = 0; p < answer.prompts.size(); ++p) {
        Prompt& prompt = answer.prompts[p];
        const Result<> completed = co_await answer.complete(exchange, prompt);
        if (!completed) co_return error_of_prompt(p, answer.prompts.size(), completed.error());
        const Result<> held = exchange.hold(
            prompt.request,
            {.num_copies = prompt.num_samples,
             .num_kept = prompt.num_kept,
             .kept_bytes = prompt.kept_bytes}
        );
        if (!held) co_return held.error();
        for (std::int64_t sample = 0; sample < prompt.num_samples; ++sample) {
            const bool is_last = sample + 1 == prompt.num_samples;
            messages::Generate request = prompt.request;
            if (is_last) prompt.request = {};
            std::vector<std::string>& names = prepared.names.emplace_back(answer.names);
            if (prompt.name.empty()) {
                if (request.rid.empty()) request.rid = answer.rid_of(requests.size());
            } else {
                const std::vector<std::string> own = name_sample(prompt, sample, request);
                names.insert(names.end(), own.begin(), own.end());
                prepared.own_names.insert(prepared.own_names.end(), names.begin(), names.end());
            }
            // With one seed, all samples would be equal.
            if (request.sampling.seed) *request.sampling.seed += static_cast<std::uint64_t>(sample);
            answer.add_sample(p, request);
            if (!request.turn) {
                auto turn = turn_of_session(exchange.request(), prompt.session);
                if (!turn) co_return turn.error();
                request.turn = *std::move(turn);
            }
            prepared.batch.prompts.push_back(p);
            requests.push_back(std::move(request));
        }
    }
    co_return prepared;
}

// For dialects that show a version in each answer: gives a request that ended before its first
// token the version that serves now.
template <Answering A>
Task<> complete_version(Exchange& exchange, A& answer, std::size_t index) {
    if (const auto version = co_await serving_version(exchange))
        answer.set_version(index, *version);
}

template <Answering A>
constexpr bool kShowsVersion = requires(A answer) {
    answer.lacks_version(std::size_t{});
};

// Whether a dialect has named events, for errors and for the end of a stream. The streams of other
// dialects end with "[DONE]".
template <Answering A>
constexpr bool kNamesEvents = requires(A answer, EventStream& stream, const Error& error) {
    answer.write_error(stream, error);
};

// Makes an error text for a name that is neither the model's nor a loaded adapter's.
template <Answering A>
Response refusal_of(Exchange& exchange, const A& answer, Error error) {
    if constexpr (requires { answer.named_model(); })
        error = error_of_model(exchange, answer.named_model(), std::move(error));
    return A::refusal(error);
}

// Returns the error with which the answer ends at the chunk, if any.
template <Answering A>
std::optional<Error> problem_of(const A& answer, const messages::OutputChunk& chunk) {
    if (auto error = error_of(chunk)) return error;
    if constexpr (requires { answer.problem_of(chunk); }) return answer.problem_of(chunk);
    return std::nullopt;
}

template <Answering A>
Task<Response> answer_whole(
    Exchange& exchange, Generation& generation, const Batch& batch, A& answer
) {
    Result<std::vector<messages::OutputChunk>> outputs = co_await collect(generation, batch);
    if (!outputs) co_return refusal_of(exchange, answer, outputs.error());
    for (std::size_t i = 0; i < outputs->size(); ++i) {
        if (auto error = problem_of(answer, (*outputs)[i]))
            co_return refusal_of(exchange, answer, batch.error_of_request(i, *std::move(error)));
        Generation::Event event{.index = i, .chunk = std::move((*outputs)[i])};
        answer.handle_event(event);
        (*outputs)[i] = std::move(event.chunk);
        if constexpr (kShowsVersion<A>) {
            if (answer.lacks_version(i)) co_await complete_version(exchange, answer, i);
        }
    }
    JsonWriter json;
    answer.write_whole(json, *outputs);
    Response response = Response::json_text(200, json.take());
    if (const std::string& why = generation.waited(); !why.empty())
        response.headers.push_back({std::string(kWaitedHeader), why});
    co_return response;
}

template <Answering A>
Task<Response> answer_streamed(
    Exchange& exchange, Generation& generation, const Batch& batch, A& answer
) {
    EventStream stream(exchange);
    while (auto event = co_await generation.next()) {
        if (!event->waiting.empty()) {
            stream.add_waiting(event->waiting);
            if (!co_await stream.send(/*more_is_ready=*/false)) co_return Response::streamed();
            continue;
        }
        if (auto error = problem_of(answer, event->chunk)) {
            error = batch.error_of_request(event->index, *std::move(error));
            if (!stream.has_begun()) co_return refusal_of(exchange, answer, *error);
            if constexpr (kNamesEvents<A>) {
                answer.write_error(stream, *error);
            } else {
                stream.add_error(A::kDialect, *error);
            }
            break;
        }
        if (answer.handle_event(*event)) {
            if constexpr (kShowsVersion<A>) {
                const std::size_t index = event->index;
                if (answer.lacks_version(index)) co_await complete_version(exchange, answer, index);
            }
            answer.write_events(stream, *std::move(event));
        }
        if (!co_await stream.send(generation.has_more_now())) co_return Response::streamed();
    }
    if constexpr (kNamesEvents<A>) {
        co_await stream.send(/*more_is_ready=*/false);
    } else {
        answer.write_end(stream);
        co_await stream.end();
    }
    co_return Response::streamed();
}

}  // namespace pipeline

template <Answering A>
Task<Response> serve(Exchange& exchange) {
    Result<A> answer = A::parse(exchange);
    if (!answer) co_return A::refusal(answer.error());
    Preparations::Entry preparation =
        exchange.tree().preparations().begin(pipeline::abort_names(*answer));
    Result<pipeline::Prepared> prepared = co_await pipeline::prepare(exchange, *answer);
    if (!prepared) co_return A::refusal(prepared.error());
    if (const auto free = pipeline::check_names(exchange, *prepared); !free)
        co_return A::refusal(free.error());
    Generation generation(exchange);
    generation.start(
        std::move(preparation), std::move(prepared->requests), std::move(prepared->names)
    );
    if (answer->is_streamed())
        co_return co_await pipeline::answer_streamed(
            exchange, generation, prepared->batch, *answer
        );
    co_return co_await pipeline::answer_whole(exchange, generation, prepared->batch, *answer);
}

}  // namespace pitstop::http
