// Serves SGLang's /open_session and /close_session. The tree keeps a session's tokens as a
// conversation (messages/conversations.h); /generate runs the turns. Also serves SkyRL's
// /finish_session, for sessions that requests only name.
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/routes.h"
#include "messages/conversations.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace pitstop::http {
namespace {

Result<messages::OpenConversation> parse_open(std::string_view body) {
    ASSIGN_OR_RETURN(const nlohmann::json json, parse_json_object(body));
    FieldReader fields(json);
    messages::OpenConversation call;
    std::optional<std::int64_t> capacity;  // SGLang requires this field, and does not use it
    fields.read("capacity_of_str_len", capacity);
    fields.read("session_id", call.id);
    fields.read("timeout", call.idle_timeout_s);
    bool is_streaming = false;  // for SGLang: a session that only appends
    fields.read("streaming", is_streaming);
    if (!capacity || *capacity < 0) fields.fail("capacity_of_str_len", "an integer of 0 or more");
    if (fields.error()) return *fields.error();
    messages::OpenConversation checked = call;
    checked.call = CallId{1};  // any number, as the client assigns the real one
    if (auto problem = messages::invalid(checked))
        return make_error(ErrorCode::kInvalidArgument, "timeout or session_id: {}", *problem);
    return call;
}

// Answers the session's id, as a JSON text.
Task<Response> open_session(Exchange& exchange) {
    Result<messages::OpenConversation> call = parse_open(exchange.request().body);
    if (!call) co_return error_response(Dialect::kSglang, call.error());
    const Result<messages::ConversationReply> reply =
        co_await exchange.tree().call(*std::move(call));
    if (!reply) {  // a name in use is the caller's mistake, as in SGLang
        const ErrorCode code = reply.error().code;
        const int status = code == ErrorCode::kAlreadyExists ? 400 : status_of(code);
        co_return error_response(Dialect::kSglang, status, reply.error());
    }
    co_return Response::json_text(200, nlohmann::json(reply->id).dump());
}

// Errors: kInvalidArgument, or the tree's, except for a session that has ended by itself.
Task<Result<std::string>> close(Exchange& exchange, const nlohmann::json& json) {
    FieldReader fields(json);
    messages::CloseConversation call;
    fields.read("session_id", call.id);
    if (call.id.empty()) fields.fail("session_id", "the id of an open session");
    if (fields.error()) co_return *fields.error();
    messages::CloseConversation checked = call;
    checked.call = CallId{1};  // any number, as the client assigns the real one
    if (auto problem = messages::invalid(checked))
        co_return make_error(ErrorCode::kInvalidArgument, "session_id: {}", *problem);
    std::string id = call.id;
    const Result<messages::ConversationReply> reply =
        co_await exchange.tree().call(std::move(call));
    // As in SGLang, a session that has ended by itself counts as closed.
    if (!reply && reply.error().code != ErrorCode::kNotFound) co_return reply.error();
    co_return id;
}

Task<Response> close_session(Exchange& exchange) {
    const Result<nlohmann::json> json = parse_json_object(exchange.request().body);
    if (!json) co_return error_response(Dialect::kSglang, json.error());
    const Result<std::string> closed = co_await close(exchange, *json);
    if (!closed) co_return error_response(Dialect::kSglang, closed.error());
    co_return Response::empty(200);
}

Task<Response> finish_session(Exchange& exchange) {
    const Result<nlohmann::json> json = control_fields(exchange.request());
    if (!json) co_return error_response(Dialect::kVllm, json.error());
    const Result<std::string> closed = co_await close(exchange, *json);
    if (!closed) co_return error_response(Dialect::kVllm, closed.error());
    const nlohmann::json answer{{"status", "ok"}, {"session_id", *closed}};
    co_return Response::json_text(200, answer.dump());
}

}  // namespace

void add_sglang_sessions(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{"POST", "/open_session", open_session},
         {.methods = "POST", .path = "/close_session", .handler = close_session, .media = ""}}
    );
    router.add(Dialect::kVllm, Access::kData, {{"POST", "/finish_session", finish_session}});
}

}  // namespace pitstop::http
