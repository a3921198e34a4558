// Serves the status page, a static page at /, and its events.
#include "base/time.h"
#include "http_proc/format/update_seconds_json.h"
#include "http_proc/observe/expert_load.h"
#include "http_proc/observe/metrics_text.h"
#include "http_proc/observe/routes.h"
#include "http_proc/server/errors.h"
#include "http_proc/server/status_history.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPage =
#include "http_proc/observe/status_page.inc"  // the page, as one string literal
    ;
constexpr int kPagesMax = 64;  // the most pages open at once

Task<Response> page(Exchange&) {
    Response response = Response::text(200, std::string(kPage));
    response.content_type = "text/html; charset=utf-8";
    // The page loads from no other site, and sends to none.
    response.headers.push_back(
        {"content-security-policy",
         "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
         "connect-src 'self'; img-src data:; frame-ancestors 'none'"}
    );
    response.headers.push_back({"cache-control", "no-cache"});
    co_return response;
}

// Returns the most memory that all ranks together may use for this tag.
std::int64_t capacity_of(const messages::ReplicaStatus& replica, messages::MemoryTag tag) {
    std::int64_t bytes = 0;
    for (const messages::WorkerStatus& worker : replica.workers)
        bytes += tag == messages::MemoryTag::kKvCache ? worker.kv_bytes : worker.weight_bytes;
    return bytes;
}

Json replica_json(const messages::ReplicaStatus& replica) {
    Json memory = Json::array();
    for (const messages::TagMemory& tag : replica.memory) {
        memory.push_back(
            {{"tag", name_of(tag.tag)},
             {"state", name_of(tag.state)},
             {"resident_bytes", tag.resident_bytes},
             {"capacity_bytes", capacity_of(replica, tag.tag)},
             {"host_bytes", tag.host_bytes}}
        );
    }
    const KvUse use = kv_use_of(replica);
    return {
        {"replica", raw(replica.replica)},
        {"state", name_of(replica.state)},
        {"epoch", raw(replica.epoch)},
        {"label", replica.label},
        {"digest", replica.digest},
        {"has_weights", replica.has_weights},
        {"running", replica.num_running},
        {"waiting", replica.num_waiting},
        {"retracted", replica.num_retracted},
        {"steps", replica.num_steps},
        {"steps_in_flight", replica.steps_in_flight},
        {"step_age_s", replica.step_age_s},
        {"pause_mode", replica.pause_mode},
        {"paused_s", replica.paused_s},
        {"paused_s_total", replica.paused_s_total},
        {"pauses_total", replica.pauses_total},
        {"tokens_per_s", replica.output_tokens_per_s},
        {"output_tokens_total", replica.output_tokens_total},
        {"recomputed_tokens_total", replica.recomputed_tokens_total},
        {"spanning_requests_total", replica.spanning_requests_total},
        {"kv_usage", use.usage},
        {"kv_used_tokens", use.used_tokens},
        {"kv_total_tokens", use.total_tokens},
        {"hit_rate", use.hit_rate},
        {"memory", memory},
        {"workers", replica.workers.size()},
        {"device", replica.workers.empty() ? "" : replica.workers.front().device}};
}

// Returns the load of experts in per cent of a layer's mean, at most kLoadRowsMax x kLoadColumnsMax
// values. Null if no expert has computed a token.
Json experts_json(const messages::StatusReply& status) {
    if (!status.expert_load) return nullptr;
    Json layers = Json::array();
    for (const LayerLoad& load : layer_loads(*status.expert_load)) {
        Json percents = Json::array();
        for (const double ratio : load.grid) percents.push_back(std::llround(100 * ratio));
        layers.push_back({{"layer", load.layer}, {"percents", percents}});
    }
    if (layers.empty()) return nullptr;
    return {{"num_experts", status.expert_load->num_experts}, {"layers", layers}};
}

// Returns the adapters of all replicas, without their paths, because this route is open. Replicas
// have the same versions; their counts are summed. `lost`: the number of replicas that lost it.
// Null if there are no adapters.
Json adapters_json(const messages::StatusReply& status) {
    constexpr std::size_t kShownMax = 64;
    std::map<std::string, Json> by_name;
    for (const messages::ReplicaStatus& replica : status.replicas) {
        for (const messages::LostAdapter& lost : replica.lost_adapters) {
            Json& json = by_name[lost.adapter.name];
            json["name"] = lost.adapter.name;
            json["lost"] = json.value("lost", 0) + 1;
            if (json.contains("digest")) continue;  // another replica serves one
            json["version"] = raw(lost.adapter.version);
            json["label"] = lost.adapter.label;
        }
        for (const messages::AdapterStatus& each : replica.adapters) {
            Json& json = by_name[each.adapter.name];
            json["name"] = each.adapter.name;
            json["version"] = raw(each.adapter.version);
            json["label"] = each.adapter.label;
            json["digest"] = each.adapter.digest;
            json["config_digest"] = each.config_digest;
            const auto add = [&](const char* name, std::int64_t count) {
                json[name] = json.value(name, std::int64_t{0}) + count;
            };
            add("open", each.num_requests);
            add("older", each.num_older);
            add("requests", each.requests_total);
            add("tokens", each.output_tokens_total);
            add("bytes", each.bytes);
            add("evictions", each.evictions_total);
        }
    }
    if (by_name.empty()) return nullptr;
    Json shown = Json::array();
    for (auto& [name, json] : by_name) {
        if (shown.size() < kShownMax) shown.push_back(std::move(json));
    }
    return {{"total", by_name.size()}, {"shown", std::move(shown)}};
}

// Readers without access to data get no paths of the machine, and no error messages, because these
// contain paths.
enum class Reader { kAnybody, kMayData };

Json update_json(const messages::UpdateRecord& update, Reader reader) {
    Json json{
        {"what", update.what},
        {"adapter", update.adapter},
        {"ok", update.ok},
        {"message",
         reader == Reader::kMayData ? update.verdict.message : update.verdict.code_name()},
        {"epoch", raw(update.epoch)},
        {"label", update.label},
        {"age_s", update.age_s},
        {"bytes", update.bytes}};
    add_seconds(json, update.seconds);
    return json;
}

// Leaves out path and reason, because this route is open.
Json lost_json(const std::optional<messages::LostVersion>& lost) {
    if (!lost) return nullptr;
    return {{"epoch", raw(lost->epoch)}, {"label", lost->label}, {"digest", lost->digest}};
}

// Returns the last two minutes, one list per quantity, which the page draws before any event.
Json history_json(const StatusHistory& history, TimePoint now) {
    Json json{
        {"age_s", Json::array()},
        {"tokens_per_s", Json::array()},
        {"step_age_s", Json::array()},
        {"paused", Json::array()},
        {"epochs", Json::array()}};
    for (const StatusHistory::Point& point : history.points()) {
        json["age_s"].push_back(seconds(now - point.at));
        json["tokens_per_s"].push_back(point.tokens_per_s);
        json["step_age_s"].push_back(point.step_age_s);
        json["paused"].push_back(point.is_paused);
        Json epochs = Json::array();
        for (const Epoch epoch : point.epochs) epochs.push_back(raw(epoch));
        json["epochs"].push_back(std::move(epochs));
    }
    return json;
}

Json quantiles_json(const Histogram& now, const Histogram& before) {
    const std::optional<double> median = now.quantile_since(before, 0.5);
    if (!median) return nullptr;
    return {
        {"count", now.count_since(before)},
        {"p50", *median},
        {"p95", now.quantile_since(before, 0.95).value_or(*median)}};
}

// Returns the durations of the last two minutes' requests, and how the requests ended.
Json recent_json(
    const StatusHistory& history,
    const messages::StatusReply& status,
    const RequestMetrics& requests
) {
    if (history.points().empty()) return nullptr;
    const StatusHistory::Point& first = history.points().front();
    const StatusHistory::Ended ended = StatusHistory::ended_of(status);
    return {
        {"first_token_s", quantiles_json(requests.first_token, first.first_token)},
        {"between_tokens_s", quantiles_json(requests.between_tokens, first.between_tokens)},
        {"queue_s", quantiles_json(requests.queue, first.queue)},
        {"ended", ended.all - first.ended.all},
        {"errors", ended.errors - first.ended.errors},
        {"aborted", ended.aborted - first.ended.aborted}};
}

Json event_of(
    const Result<messages::StatusReply>& status, const messages::HelloReply& hello, Reader reader
) {
    Json event;
    if (!status) {
        const Error& error = status.error();
        event = {
            {"error",
             reader == Reader::kMayData ? error.message : std::string(name_of(error.code))}};
    } else {
        event = {
            {"server", status->server},
            {"model", status->model},
            {"model_type", hello.model_type},
            {"uptime_s", status->uptime_s},
            {"open_requests", status->open_requests},
            {"clients", status->clients},
            {"updates_total", status->updates_total},
            {"updates_failed_total", status->updates_failed_total},
            {"adapter_updates_total", status->adapter_updates_total},
            {"adapter_updates_failed_total", status->adapter_updates_failed_total},
            {"lost", lost_json(status->lost)},
            {"experts", experts_json(*status)},
            {"adapters", adapters_json(*status)},
            {"replicas", Json::array()},
            {"updates", Json::array()},
            {"adapter_updates", Json::array()}};
        for (const messages::ReplicaStatus& replica : status->replicas)
            event["replicas"].push_back(replica_json(replica));
        for (const messages::UpdateRecord& update : status->updates)
            event["updates"].push_back(update_json(update, reader));
        for (const messages::UpdateRecord& update : status->adapter_updates)
            event["adapter_updates"].push_back(update_json(update, reader));
    }
    return event;
}

Task<Response> events(Exchange& exchange) {
    ServerContext& server = exchange.server();
    if (server.num_status_pages >= kPagesMax) {
        co_return error_response(
            Dialect::kPitstop, 503, fmt::format("{} status pages are open", kPagesMax)
        );
    }
    ++server.num_status_pages;
    exchange.begin_events();
    bool is_first = true;
    while (!exchange.is_gone() && !server.is_stopping) {
        const Result<messages::StatusReply> status =
            co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
        const Reader reader = exchange.may_data() ? Reader::kMayData : Reader::kAnybody;
        Tree& tree = exchange.tree();
        Json event = event_of(status, tree.hello(), reader);
        if (status) event["recent"] = recent_json(tree.history(), *status, tree.request_metrics);
        if (is_first) event["history"] = history_json(tree.history(), Clock::now());
        is_first = false;
        const std::string text =
            "data: " + event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n\n";
        const bool is_written = co_await exchange.write(text);
        if (!is_written) break;
        co_await server.ticker.next();
    }
    --server.num_status_pages;
    co_return Response::streamed();
}

}  // namespace

void add_status_page(Router& router) {
    router.add(
        Dialect::kPitstop,
        Access::kOpen,
        {{.methods = "GET",
          .path = "/",
          .handler = page,
          .needs_tree = false,
          .media = "text/html"},
         {.methods = "GET",
          .path = "/status/events",
          .handler = events,
          .media = "text/event-stream"}}
    );
}

}  // namespace pitstop::http
