// The HTTP route that drops an open or staged weight update.
#include "http_proc/control/routes.h"
#include "http_proc/control/weight_session.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/errors.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>

namespace pitstop::http {
namespace {

Task<Response> drop_weight_update(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    if (fields.error()) co_return error_response(Dialect::kPitstop, *fields.error());
    const Result<messages::UpdateReply> reply = co_await weights::drop_session(exchange, session);
    if (!reply) co_return error_response(Dialect::kPitstop, reply.error());
    co_return Response::json(200, {{"success", true}, {"message", reply->verdict.message}});
}

}  // namespace

void add_pitstop_drop_update(Router& router) {
    router.add(
        Dialect::kPitstop, Access::kAdmin, {{"POST", "/drop_weight_update", drop_weight_update}}
    );
}

}  // namespace pitstop::http
