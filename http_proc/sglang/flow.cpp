// Serves SGLang's flow control: pause, continue, flush.
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"
#include "messages/enum_named.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

// Answers when every replica has stopped, and all output in flight has been sent.
Task<Response> pause_generation(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    std::string name = "abort";
    double max_pause_s = 0;
    fields.read("mode", name);
    fields.read("max_pause_s", max_pause_s);
    const auto mode = messages::enum_named<messages::PauseMode>(name);
    if (!mode) fields.fail("mode", "abort, in_place, retract or wait");
    if (!std::isfinite(max_pause_s) || max_pause_s < 0)
        fields.fail("max_pause_s", "seconds, 0 or more");
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<messages::PauseReply> reply =
        co_await control::pause(exchange, *mode, max_pause_s);
    if (!reply) co_return sglang_failure(reply.error());
    Json answer{{"message", "Generation paused successfully."}, {"status", "ok"}};
    for (const char* count : {"num_aborted", "num_retracted", "num_frozen", "num_waiting"})
        answer[count] = 0;
    for (const messages::PausePart& part : reply->parts) {
        answer["num_aborted"] = answer["num_aborted"].get<std::int64_t>() + part.num_aborted;
        answer["num_retracted"] = answer["num_retracted"].get<std::int64_t>() + part.num_retracted;
        answer["num_frozen"] = answer["num_frozen"].get<std::int64_t>() + part.num_frozen;
        answer["num_waiting"] = answer["num_waiting"].get<std::int64_t>() + part.num_waiting;
    }
    co_return Response::json(200, answer);
}

Task<Response> continue_generation(Exchange& exchange) {
    const Result<messages::ContinueReply> reply = co_await control::go_on(exchange);
    if (!reply) co_return sglang_failure(reply.error());
    Json answer{{"message", "Generation continued successfully."}, {"status", "ok"}};
    control::add_update(answer, reply->update);
    co_return Response::json(200, answer);
}

Task<Response> flush_cache(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    double timeout_s = 0;
    fields.read("timeout", timeout_s);
    constexpr double kDayS = 24 * 3600;
    if (!(timeout_s >= 0 && timeout_s <= kDayS)) fields.fail("timeout", "seconds, 0 to a day");
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<messages::FlushReply> reply = co_await control::flush(
        exchange, std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000))
    );
    if (reply) {
        co_return Response::text(
            200,
            "Cache flushed.\nIt is refused while requests hold pages (running, or paused "
            "in_place).\n"
        );
    }
    const bool is_late = reply.error().code == ErrorCode::kDeadlineExceeded;
    co_return Response::text(
        400,
        (is_late ? "Timed out waiting for idle state. " : "Flush cache failed. ") +
            reply.error().message + "\n"
    );
}

}  // namespace

void add_sglang_control(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {
            {"POST", "/pause_generation", pause_generation},
            {"POST", "/continue_generation", continue_generation},
            {.methods = "GET, POST",
             .path = "/flush_cache",
             .handler = flush_cache,
             .media = kTextMedia},
        }
    );
}

}  // namespace pitstop::http
