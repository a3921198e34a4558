// The HTTP route that ends the tree.
#include "http_proc/control/control.h"
#include "http_proc/control/routes.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/errors.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

Task<Response> shutdown(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    messages::Shutdown call;
    fields.read("drain_s", call.drain_s);
    if (!(call.drain_s >= 0 && call.drain_s < 1e9)) fields.fail("drain_s", "seconds, 0 or more");
    if (fields.error()) co_return error_response(Dialect::kPitstop, *fields.error());
    const Result<messages::ShutdownReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call)));
    if (!reply) co_return error_response(Dialect::kPitstop, reply.error());
    co_return Response::json(
        200, {{"status", "shutting down"}, {"open_requests", reply->open_requests}}
    );
}

}  // namespace

void add_pitstop_shutdown(Router& router) {
    router.add(Dialect::kPitstop, Access::kAdmin, {{"POST", "/shutdown", shutdown}});
}

}  // namespace pitstop::http
