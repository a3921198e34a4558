// SGLang's /abort_request. By exact id (or the name of a batch or an answer), where SGLang takes a
// prefix: "req-1" does not end "req-10".
#include "http_proc/errors.h"
#include "http_proc/json_body.h"
#include "http_proc/routes.h"

#include <nlohmann/json.hpp>

namespace pitstop {
namespace {

constexpr std::string_view kMessage = "Aborted";

// 200 and empty also for an id that nobody has, as in SGLang. Answered when the final output of
// every request it ends has been sent.
Task<Response> abort_request(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return error_response(Dialect::kSglang, body.error());
    FieldReader fields(*body);
    std::vector<std::string> names;
    Abort abort;
    abort.message = kMessage;
    fields.read("rid", names);
    fields.read("abort_all", abort.all);
    fields.read("abort_message", abort.message);
    if (fields.error()) co_return error_response(Dialect::kSglang, *fields.error());
    // Others' requests are not the business of a key for generating.
    if (abort.all && !exchange.may_admin())
        co_return error_response(Dialect::kSglang, 403, "abort_all needs the admin key");
    for (const std::string& name : names) {
        if (name.empty() || abort.all) continue;
        for (std::string& rid : exchange.tree().rids_named(name))
            abort.rids.push_back(std::move(rid));
    }
    if (abort.rids.empty() && !abort.all) co_return Response::empty(200);
    const Result<AbortReply> reply = co_await exchange.tree().call(std::move(abort));
    if (!reply) co_return error_response(Dialect::kSglang, reply.error());
    co_return Response::empty(200);
}

}  // namespace

void add_sglang_abort(Router& router) {
    router.add(
        {.methods = "POST",
         .path = "/abort_request",
         .dialect = Dialect::kSglang,
         .access = Access::kData,
         .handler = abort_request}
    );
}

}  // namespace pitstop
