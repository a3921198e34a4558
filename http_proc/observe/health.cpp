// Health routes: /ping (this server is alive), /health (the tree), /health_generate (one token).
#include "http_proc/format/versions.h"
#include "http_proc/observe/routes.h"
#include "http_proc/server/errors.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace pitstop::http {
namespace {

constexpr std::chrono::seconds kProbeTimeout{20};

Task<Response> ping(Exchange&) { co_return Response::empty(200); }

// Returns whether the present tree has ever had weights. Asks the tree until the answer is yes.
Task<bool> has_been_ready(Exchange& exchange) {
    ServerContext& server = exchange.server();
    const std::uint64_t tree = exchange.tree().number();
    if (server.readiness.of(tree).has_been) co_return true;
    const Result<messages::StatusReply> status =
        co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
    if (!status || exchange.tree().number() != tree) co_return false;
    ServerContext::Readiness& known = server.readiness.of(tree);
    known.has_been = known.has_been || status->is_ready;
    known.lost = status->lost;
    co_return known.has_been;
}

// Reports only liveness: answers 200 even while paused, asleep or updating, because routers evict
// servers that answer otherwise.
Task<Response> health(Exchange& exchange) {
    ServerContext& server = exchange.server();
    const bool is_up =
        server.has_tree() && !server.is_stopping && server.tree().client().is_connected();
    if (!is_up) co_return Response::empty(503);
    const bool is_ready = co_await has_been_ready(exchange);
    if (is_ready) co_return Response::empty(200);
    const std::optional<messages::LostVersion>& lost =
        server.readiness.of(exchange.tree().number()).lost;
    if (!lost) co_return Response::empty(503);
    // The answer names no path and no reason, because this route is open.
    co_return error_response(
        Dialect::kPitstop,
        503,
        fmt::format(
            "waits for a complete update: {} (digest {}), the version before the restart, is lost",
            version_name(lost->epoch, lost->label),
            lost->digest
        )
    );
}

bool is_idle_and_running(const messages::StatusReply& status) {
    return std::ranges::all_of(status.replicas, [](const messages::ReplicaStatus& replica) {
        return replica.state == messages::ReplicaState::kRunning &&
               replica.num_running + replica.num_waiting == 0;
    });
}

// A tree that answers is healthy while it is busy or paused. A tree that reports itself idle must
// generate a token.
Task<Response> health_generate(Exchange& exchange) {
    if (exchange.server().is_stopping) co_return Response::empty(503);
    const bool is_ready = co_await has_been_ready(exchange);
    if (!is_ready) co_return Response::empty(503);
    const Result<messages::StatusReply> before =
        co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
    if (!before) co_return Response::empty(503);
    if (!is_idle_and_running(*before)) co_return Response::empty(200);

    messages::Generate probe;
    probe.rid = "HEALTH_CHECK_" + Tree::random_id();
    probe.input_ids = {TokenId{0}};
    probe.sampling.max_new_tokens = 1;
    probe.sampling.temperature = 0;
    probe.stream = false;
    probe.text_output = false;
    Later<bool> done;
    exchange.tree().client().generate(
        std::move(probe),
        [setter = done.setter()](const messages::OutputChunk& chunk) {
            if (chunk.finish) setter.set(chunk.finish->reason != messages::FinishReason::kError);
        },
        kProbeTimeout
    );
    if (co_await done) co_return Response::empty(200);
    // The tree may have been paused since the first status.
    const Result<messages::StatusReply> after =
        co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
    co_return Response::empty(after && !is_idle_and_running(*after) ? 200 : 503);
}

}  // namespace

void add_pitstop_health(Router& router) {
    // Some servers and trainers call this route /ready or /liveness.
    router.add(
        Dialect::kPitstop,
        Access::kOpen,
        {
            {.methods = "GET, POST",
             .path = "/ping",
             .handler = ping,
             .needs_tree = false,
             .media = ""},
            {.methods = "GET",
             .path = "/health",
             .handler = health,
             .needs_tree = false,
             .media = ""},
            {.methods = "GET",
             .path = "/ready",
             .handler = health,
             .needs_tree = false,
             .media = ""},
            {.methods = "GET",
             .path = "/liveness",
             .handler = health,
             .needs_tree = false,
             .media = ""},
        }
    );
    router.add(
        Dialect::kSglang,
        Access::kOpen,
        {{.methods = "GET", .path = "/health_generate", .handler = health_generate, .media = ""}}
    );
}

}  // namespace pitstop::http
