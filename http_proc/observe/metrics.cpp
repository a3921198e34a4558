// Serves /metrics, and the routes that routers poll for load: /get_load and /v1/loads (SGLang),
// /load (vLLM).
#include "base/time.h"
#include "http_proc/observe/metrics_text.h"
#include "http_proc/observe/routes.h"
#include "http_proc/server/errors.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

Task<Response> metrics(Exchange& exchange) {
    const Result<messages::StatusReply> status =
        co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
    if (!status) co_return error_response(Dialect::kPitstop, status.error());
    Tree& tree = exchange.tree();
    Response response = Response::text(
        200, metrics_text(*status, tree.hello(), tree.request_metrics, tree.num_generating)
    );
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    co_return response;
}

Task<Response> get_load(Exchange& exchange) {
    const Result<messages::StatusReply> status =
        co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
    if (!status) co_return error_response(Dialect::kSglang, status.error());
    Json loads = Json::array();
    const double now = seconds(Clock::now().time_since_epoch());
    for (const messages::ReplicaStatus& replica : status->replicas) {
        loads.push_back(
            {{"dp_rank", raw(replica.replica)},
             {"num_reqs", replica.num_running + replica.num_waiting},
             {"num_waiting_reqs", replica.num_waiting},
             {"num_tokens", kv_use_of(replica).used_tokens},
             {"num_pending_tokens", 0},
             {"ts_tic", now}}
        );
    }
    co_return Response::json(200, loads);
}

Json load_of(const messages::ReplicaStatus& replica, std::string_view include) {
    const KvUse use = kv_use_of(replica);
    const bool is_paused = !replica.pause_mode.empty();
    Json load{
        {"dp_rank", raw(replica.replica)},
        {"num_running_reqs", replica.num_running},
        {"num_waiting_reqs", replica.num_waiting},
        {"num_waiting_uncached_tokens", 0},
        {"num_used_tokens", use.used_tokens},
        {"num_total_tokens", use.used_tokens},
        {"max_total_num_tokens", use.total_tokens},
        {"max_running_requests", replica.running_max},
        {"token_usage", use.usage},
        {"gen_throughput", replica.output_tokens_per_s},
        {"cache_hit_rate", use.hit_rate},
        {"utilization",
         replica.running_max > 0
             ? static_cast<double>(replica.num_running) / static_cast<double>(replica.running_max)
             : 0.0}};
    if (include.find("queues") != std::string_view::npos || include == "all") {
        load["queues"] = {
            {"waiting", replica.num_waiting},
            {"grammar", 0},
            {"paused", is_paused ? replica.num_running + replica.num_waiting : 0},
            {"retracted", replica.num_retracted}};
    }
    return load;
}

// Returns what is wrong with the names in `include`, or nothing.
std::optional<std::string> problem_of_include(std::string_view include) {
    static constexpr std::array<std::string_view, 7> kNames{
        "core", "disagg", "queues", "memory", "speculative", "lora", "all"};
    while (!include.empty()) {
        const std::size_t end = std::min(include.find(','), include.size());
        const std::string_view name = include.substr(0, end);
        if (std::ranges::count(kNames, name) == 0) {
            return fmt::format(
                "include names '{}'; accepted are core, disagg, queues, memory, speculative, lora "
                "and all",
                name
            );
        }
        include.remove_prefix(std::min(end + 1, include.size()));
    }
    return std::nullopt;
}

Task<Response> v1_loads(Exchange& exchange) {
    const Request& request = exchange.request();
    const std::string_view include = request.query_value("include").value_or("core");
    if (const auto problem = problem_of_include(include))
        co_return error_response(Dialect::kSglang, 400, *problem);
    std::optional<std::int64_t> rank;
    if (const auto given = request.query_value("dp_rank")) {
        std::int64_t number = 0;
        const auto read = std::from_chars(given->data(), given->data() + given->size(), number);
        const bool is_rank = read.ec == std::errc{} && read.ptr == given->data() + given->size() &&
                             number >= 0 && number < exchange.tree().hello().replicas;
        if (!is_rank) {
            co_return error_response(
                Dialect::kSglang,
                400,
                fmt::format("dp_rank is a number below {}", exchange.tree().hello().replicas)
            );
        }
        rank = number;
    }
    const std::string_view format = request.query_value("format").value_or("json");
    if (format == "prometheus") co_return co_await metrics(exchange);
    if (format != "json")
        co_return error_response(Dialect::kSglang, 400, "format is json or prometheus");
    const Result<messages::StatusReply> status =
        co_await exchange.tree().call(messages::Status{}, kStatusTimeout);
    if (!status) co_return error_response(Dialect::kSglang, status.error());
    Json loads = Json::array();
    for (const messages::ReplicaStatus& replica : status->replicas) {
        if (!rank || *rank == raw(replica.replica)) loads.push_back(load_of(replica, include));
    }
    const messages::HelloReply& hello = exchange.tree().hello();
    const std::vector<messages::WorkerStatus>& workers = status->replicas.front().workers;
    co_return Response::json(
        200,
        {{"timestamp", ServerContext::unix_time()},
         {"version", status->server},
         {"accelerator", workers.empty() ? std::string("cpu") : workers.front().device},
         {"num_accelerators", hello.replicas * hello.tp},
         {"loads", loads}}
    );
}

// As in vLLM, the load is the number of requests that this server is answering.
Task<Response> load(Exchange& exchange) {
    co_return Response::json(200, {{"server_load", exchange.tree().num_generating}});
}

}  // namespace

void add_metrics(Router& router) {
    router.add(
        Dialect::kPitstop,
        Access::kOpen,
        {{.methods = "GET", .path = "/metrics", .handler = metrics, .media = kTextMedia}}
    );
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{"GET", "/get_load", get_load}, {"GET", "/v1/loads", v1_loads}}
    );
    router.add(Dialect::kVllm, Access::kData, {{"GET", "/load", load}});
}

}  // namespace pitstop::http
