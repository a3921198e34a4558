#include "http_proc/generation/pipeline.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::http {

Task<std::optional<messages::Span>> serving_version(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await exchange.tree().call(messages::Status{});
    if (!status) co_return std::nullopt;
    const messages::ReplicaStatus& replica = status->replicas.front();
    messages::Span version;
    version.epoch = version.kv_min_epoch = version.kv_max_epoch = replica.epoch;
    version.label = replica.label;
    version.digest = replica.digest;
    co_return version;
}

namespace pipeline {

Result<std::optional<messages::Turn>> turn_of_session(
    const Request& request, const std::string& session
) {
    messages::Turn turn{.conversation = session, .opens = true};
    if (session.empty()) turn.conversation = request.header("x-session-id").value_or("");
    if (turn.conversation.empty()) return std::optional<messages::Turn>();
    auto problem = messages::invalid(turn);
    if (!is_utf8(turn.conversation)) problem = "it is no UTF-8";
    if (problem) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}: {}",
            session.empty() ? "X-Session-ID" : "session_id",
            *problem
        );
    }
    return std::optional(std::move(turn));
}

std::vector<std::string> name_sample(
    const Prompt& prompt, std::int64_t sample, messages::Generate& request
) {
    if (prompt.num_samples == 1) {
        request.rid = prompt.name;
        return {prompt.name};
    }
    request.rid = fmt::format("{}_{}", prompt.name, sample);
    return {prompt.name, request.rid};
}

Result<> check_names(Exchange& exchange, const Prepared& prepared) {
    for (const std::string& name : prepared.own_names) {
        if (!exchange.tree().is_named(name)) continue;
        return make_error(ErrorCode::kAlreadyExists, "rid '{}' is an open request", name);
    }
    return Ok{};
}

}  // namespace pipeline

}  // namespace pitstop::http
