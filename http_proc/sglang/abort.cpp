// Serves SGLang's /abort_request. Aborts by exact id, of a request, a batch or an answer. SGLang
// accepts a prefix; here "req-1" does not end "req-10".
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/routes.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

// Answers 200 without content even for an unknown id, as SGLang does. The answer waits until the
// final output of every aborted request has been sent.
Task<Response> abort_request(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request(), Winner::kBody));
    control::Aborting aborting;
    fields.read("rid", aborting.names);
    fields.read("abort_all", aborting.all);
    fields.read("abort_message", aborting.message);
    if (fields.error()) co_return error_response(Dialect::kSglang, *fields.error());
    // A data key may not abort the requests of other callers.
    if (aborting.all && !exchange.may_admin())
        co_return error_response(Dialect::kSglang, 403, "abort_all needs the admin key");
    std::erase(aborting.names, "");
    const Result<messages::AbortReply> reply =
        co_await control::abort(exchange, std::move(aborting));
    if (!reply) co_return error_response(Dialect::kSglang, reply.error());
    co_return Response::empty(200);
}

}  // namespace

void add_sglang_abort(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{.methods = "POST", .path = "/abort_request", .handler = abort_request, .media = ""}}
    );
}

}  // namespace pitstop::http
