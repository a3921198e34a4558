// Serves /drain: waits until no request is open. New requests are accepted during the wait, so the
// caller must first stop sending, or pause.
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

constexpr double kTimeoutDefaultS = 60;
constexpr double kTimeoutMaxS = 24 * 3600;

Task<Response> drain(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    double timeout_s = kTimeoutDefaultS;
    fields.read("timeout", timeout_s);
    if (!(timeout_s >= 0 && timeout_s <= kTimeoutMaxS))
        fields.fail("timeout", "seconds, 0 to a day");
    if (fields.error()) co_return sglang_failure(*fields.error());
    const TimePoint deadline =
        Clock::now() +
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_s));
    while (true) {
        const Result<messages::StatusReply> status = co_await control::status(exchange);
        if (!status) co_return sglang_failure(status.error());
        const bool is_late = Clock::now() >= deadline;
        if (status->open_requests == 0 || is_late || exchange.is_gone()) {
            co_return Response::json(
                200,
                {{"success", status->open_requests == 0},
                 {"remaining_requests", status->open_requests}}
            );
        }
        co_await exchange.server().ticker.next();
    }
}

}  // namespace

void add_sglang_drain(Router& router) {
    router.add(Dialect::kSglang, Access::kAdmin, {{"POST", "/drain", drain}});
}

}  // namespace pitstop::http
