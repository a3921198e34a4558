// Serves SGLang's /open_session and /close_session. The tree keeps a session's tokens: it is a
// conversation there (messages/conversations.h), and /generate runs its turns.
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
    std::optional<std::int64_t> capacity;  // SGLang requires it, and has no use for it
    fields.read("capacity_of_str_len", capacity);
    fields.read("session_id", call.id);
    fields.read("timeout", call.idle_timeout_s);
    bool is_streaming = false;  // SGLang's sessions that only append
    fields.read("streaming", is_streaming);
    if (!capacity || *capacity < 0) fields.fail("capacity_of_str_len", "an integer of 0 or more");
    if (fields.error()) return *fields.error();
    messages::OpenConversation checked = call;
    checked.call = CallId{1};  // the client numbers it
    if (auto problem = messages::invalid(checked))
        return make_error(ErrorCode::kInvalidArgument, "timeout or session_id: {}", *problem);
    return call;
}

// Answers the id, as a JSON text.
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

Task<Response> close_session(Exchange& exchange) {
    const Result<nlohmann::json> json = parse_json_object(exchange.request().body);
    if (!json) co_return error_response(Dialect::kSglang, json.error());
    FieldReader fields(*json);
    messages::CloseConversation call;
    fields.read("session_id", call.id);
    if (call.id.empty()) fields.fail("session_id", "the id of an open session");
    if (fields.error()) co_return error_response(Dialect::kSglang, *fields.error());
    const Result<messages::ConversationReply> reply =
        co_await exchange.tree().call(std::move(call));
    // One that has ended by itself is closed, too, as in SGLang.
    if (!reply && reply.error().code != ErrorCode::kNotFound)
        co_return error_response(Dialect::kSglang, reply.error());
    co_return Response::empty(200);
}

}  // namespace

void add_sglang_sessions(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{"POST", "/open_session", open_session}, {"POST", "/close_session", close_session}}
    );
}

}  // namespace pitstop::http
