// Serves /server_info: one object for the clients of both engines. SGLang's keys and three keys of
// vLLM are at the top level.
#include "http_proc/control/control.h"
#include "http_proc/format/versions.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/routes.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

Json ranks_json(const messages::ReplicaStatus& replica) {
    Json ranks = Json::array();
    for (const messages::WorkerStatus& worker : replica.workers) {
        ranks.push_back(
            {{"rank", raw(worker.rank)},
             {"node", worker.node},
             {"host", worker.host},
             {"address", worker.address},
             {"device", worker.device}}
        );
    }
    return ranks;
}

int num_nodes(const messages::ReplicaStatus& replica) {
    int num = 1;
    for (const messages::WorkerStatus& worker : replica.workers)
        num = std::max(num, worker.node + 1);
    return num;
}

Json internal_state(const messages::ReplicaStatus& replica, const messages::HelloReply& hello) {
    Json memory = Json::object();
    for (const messages::TagMemory& tag : replica.memory) {
        memory[std::string(name_of(tag.tag))] = {
            {"state", name_of(tag.state)}, {"resident_bytes", tag.resident_bytes}};
    }
    return {
        {"dp_rank", raw(replica.replica)},
        {"world_size", hello.tp},
        {"state", name_of(replica.state)},
        {"last_gen_throughput", replica.output_tokens_per_s},
        {"memory_usage", memory},
        {"ranks", ranks_json(replica)},
        {"effective_max_running_requests_per_dp", replica.running_max},
        {"weight_epoch", raw(replica.epoch)},
        {"weight_version", version_name(replica.epoch, replica.label)}};
}

// Returns the backend that init_weight_transfer_engine joins: NCCL, or TCP for workers on CPUs.
std::string_view group_backend(const messages::ReplicaStatus& replica) {
    const bool is_cpu =
        replica.workers.empty() || replica.workers.front().device_uuid.starts_with("CPU-");
    return is_cpu ? "host" : "nccl";
}

Task<Response> server_info(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return error_response(Dialect::kSglang, status.error());
    const messages::HelloReply& hello = exchange.tree().hello();
    const ServerOptions& options = exchange.server().options();
    const messages::ReplicaStatus& first = status->replicas.front();
    Json states = Json::array();
    for (const messages::ReplicaStatus& replica : status->replicas)
        states.push_back(internal_state(replica, hello));
    Json config{
        {"model", hello.model_path},
        {"served_model_name", hello.model},
        {"max_model_len", hello.context_len},
        {"tensor_parallel_size", hello.tp},
        {"data_parallel_size", hello.replicas},
        {"max_num_seqs", first.running_max},
        {"weight_transfer_config", {{"backend", group_backend(first)}}},
        {"enable_sleep_mode", true}};
    const bool is_json = exchange.request().query_value("config_format").value_or("text") == "json";
    Json answer{
        {"model_path", hello.model_path},
        {"tokenizer_path", hello.model_path},
        {"served_model_name", hello.model},
        {"tp_size", hello.tp},
        {"dp_size", hello.replicas},
        {"pp_size", 1},
        {"ep_size", first.workers.empty() ? 1 : first.workers.front().ep},
        {"nnodes", num_nodes(first)},
        {"node_rank", 0},
        {"base_gpu_id", 0},
        {"gpu_id_step", 1},
        {"host", options.host},
        {"port", options.port},
        {"enable_memory_saver", true},
        {"skip_tokenizer_init", false},
        {"context_length", hello.context_len},
        {"page_size", first.page_size},
        {"max_running_requests", first.running_max},
        {"max_queued_requests", first.queue_len_max},
        {"status", status->is_ready ? "ready" : "starting"},
        {"max_total_num_tokens", first.pages_total * first.page_size},
        {"max_req_input_len", hello.context_len - 1},
        {"internal_states", std::move(states)},
        {"version", hello.server.substr(hello.server.rfind(' ') + 1)},
        {"kv_events", nullptr},
        {"vllm_config", is_json ? config : Json(config.dump())},
        {"vllm_env", Json::object()},
        {"system_env", Json::object()}};
    co_return Response::json(200, answer);
}

}  // namespace

void add_server_info(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{"GET", "/server_info", server_info}, {"GET", "/get_server_info", server_info}}
    );
}

}  // namespace pitstop::http
