// Serves vLLM's pause and resume, resets of the prefix cache, and aborts by id.
//
//   vLLM                        here
//   abort                       abort
//   wait                        wait
//   keep, clear_cache=false     in_place
//   keep, clear_cache=true      retract, then flush
#include "http_proc/vllm/pause.h"

#include "base/utf8.h"
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/errors.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace pitstop::http {

Result<messages::PauseMode> vllm_pause_mode(std::string_view mode, bool clears_cache) {
    if (mode == "abort") return messages::PauseMode::kAbort;
    if (mode == "wait") return messages::PauseMode::kWait;
    if (mode == "keep")
        return clears_cache ? messages::PauseMode::kRetract : messages::PauseMode::kInPlace;
    return make_error(
        ErrorCode::kInvalidArgument,
        "mode is '{}'; accepted are abort, wait and keep",
        utf8_prefix(mode, 64)
    );
}

Task<Result<>> vllm_pause(Exchange& exchange, messages::PauseMode mode, bool clears_cache) {
    const Result<messages::PauseReply> paused = co_await control::pause(exchange, mode);
    if (!paused) co_return paused.error();
    // A pause with abort has already cleared the cache.
    if (!clears_cache || mode == messages::PauseMode::kAbort) co_return Ok{};
    const Result<messages::FlushReply> flushed = co_await control::flush(exchange);
    if (!flushed) co_return flushed.error();
    co_return Ok{};
}

namespace {

Task<Response> pause(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    std::string name = "abort";
    bool clears_cache = true;
    bool waits = false;
    fields.read("mode", name);
    fields.read("clear_cache", clears_cache);
    fields.read("wait_for_inflight_requests", waits);
    if (fields.error()) co_return vllm_failure(*fields.error());
    const Result<messages::PauseMode> mode = vllm_pause_mode(waits ? "wait" : name, clears_cache);
    if (!mode) co_return vllm_failure(mode.error());
    const Result<> paused = co_await vllm_pause(exchange, *mode, clears_cache);
    if (!paused) co_return vllm_failure(paused.error());
    co_return Response::json(200, {{"status", "paused"}});
}

Task<Response> resume(Exchange& exchange) {
    const Result<messages::ContinueReply> reply = co_await control::go_on(exchange);
    if (!reply) co_return vllm_failure(reply.error());
    nlohmann::ordered_json answer{{"status", "resumed"}};
    control::add_update(answer, reply->update);
    co_return Response::json(200, answer);
}

Task<Response> is_paused(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return vllm_failure(status.error());
    co_return Response::json(200, {{"is_paused", control::is_paused(*status)}});
}

// Always answers 200, as vLLM's clients expect; the body has the outcome. As in vLLM, only the
// query may have reset_running_requests: SkyRL sends it in a body, where it has no effect.
Task<Response> reset_prefix_cache(Exchange& exchange) {
    Request query{.query = exchange.request().query};
    FieldReader fields(control_fields(query));
    bool resets_running = false;
    fields.read("reset_running_requests", resets_running);
    if (fields.error()) co_return vllm_failure(*fields.error());
    Task<Result<messages::FlushReply>> flush =
        resets_running ? control::flush_with_running(exchange) : control::flush(exchange);
    const Result<messages::FlushReply> cleared = co_await std::move(flush);
    if (!cleared && cleared.error().code != ErrorCode::kFailedPrecondition)
        co_return vllm_failure(cleared.error());
    co_return Response::json(
        200,
        {{"success", cleared.has_value()},
         {"message", cleared ? "the prefix cache is empty" : cleared.error().message}}
    );
}

// Caches of images do not exist here, so they are always empty.
Task<Response> reset_absent_cache(Exchange&) { co_return Response::empty(200); }

Task<Response> answer_abort(Exchange& exchange, control::Aborting aborting) {
    const Result<messages::AbortReply> reply =
        co_await control::abort(exchange, std::move(aborting));
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(
        200, {{"status", "aborted"}, {"aborted", control::num_aborted(*reply)}}
    );
}

Task<Response> abort_requests(Exchange& exchange) {
    // A call whose body was forgotten must not end all requests.
    if (exchange.request().body.empty() && exchange.request().query.empty()) {
        co_return vllm_failure(
            {ErrorCode::kMalformed, "Invalid JSON format: the body is empty; {} aborts everything"}
        );
    }
    FieldReader fields(control_fields(exchange.request()));
    control::Aborting aborting;
    fields.read("request_ids", aborting.names);
    if (fields.error()) co_return vllm_failure(*fields.error());
    aborting.all = aborting.names.empty();
    // A data key may not abort the requests of other callers.
    if (aborting.all && !exchange.may_admin()) {
        co_return error_response(
            Dialect::kVllm, 403, "aborting everything needs the admin key; name request_ids"
        );
    }
    co_return co_await answer_abort(exchange, std::move(aborting));
}

// Aborts the requests with the given ids. The call must give at least one id.
Task<Response> abort_own_requests(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    control::Aborting aborting;
    fields.read("request_ids", aborting.names);
    if (aborting.names.empty() && !fields.error()) fields.fail("request_ids", "at least one id");
    if (fields.error()) co_return vllm_failure(*fields.error());
    co_return co_await answer_abort(exchange, std::move(aborting));
}

}  // namespace

void add_vllm_pause(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kAdmin,
        {
            {"POST", "/pause", pause},
            {"POST", "/resume", resume},
            {"POST", "/reset_prefix_cache", reset_prefix_cache},
            {.methods = "POST",
             .path = "/reset_mm_cache",
             .handler = reset_absent_cache,
             .media = ""},
            {.methods = "POST",
             .path = "/reset_encoder_cache",
             .handler = reset_absent_cache,
             .media = ""},
        }
    );
    router.add(
        Dialect::kVllm,
        Access::kData,
        {
            {"POST", "/abort_requests", abort_requests},
            {"POST", "/inference/v1/abort_requests", abort_own_requests},
            {"GET", "/is_paused", is_paused},
        }
    );
}

}  // namespace pitstop::http
