// Serves the label of the serving version, in both dialects. Both have /update_weight_version, with
// different defaults of abort_all_requests: SGLang aborts all requests unless it is false, vLLM
// aborts none. Here requests end only if it is true, because no call ends requests unasked (P4).
// The answer has the fields of both dialects.
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/versions.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

Task<Response> update_weight_version(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    messages::SetWeightLabel call;
    fields.read("new_version", call.label);
    fields.read("abort_all_requests", call.abort_all);
    if (call.label.empty() && !fields.error()) fields.fail("new_version", "a text, not empty");
    if (fields.error()) co_return sglang_failure(*fields.error());
    const std::string label = call.label;
    const bool aborts_all = call.abort_all;
    const Result<messages::LabelReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call)));
    if (!reply) co_return sglang_failure(reply.error());
    if (aborts_all) {  // including requests that were on their way to the schedulers
        const Result<messages::AbortReply> aborted = co_await control::abort_all(exchange);
        if (!aborted) co_return sglang_failure(aborted.error());
    }
    co_return Response::json(
        200,
        {{"success", true},
         {"message", fmt::format("Weight version updated to {}", label)},
         {"new_version", label}}
    );
}

// Returns the version's name at replica 0, which all replicas share except during a change.
Task<Response> get_weight_version(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return sglang_failure(status.error());
    const messages::ReplicaStatus& replica = status->replicas.front();
    co_return Response::json(
        200,
        {{"weight_version", version_name(replica.epoch, replica.label)},
         {"weight_epoch", raw(replica.epoch)},
         {"weight_digest", replica.digest}}
    );
}

}  // namespace

void add_weight_label(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {{"POST", "/update_weight_version", update_weight_version}}
    );
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{"GET", "/get_weight_version", get_weight_version},
         {"GET", "/weight_version", get_weight_version}}
    );
    router.add(Dialect::kVllm, Access::kData, {{"GET", "/weight_info", get_weight_version}});
}

}  // namespace pitstop::http
