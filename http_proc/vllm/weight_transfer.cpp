// Serves vLLM's four routes for weights from a running trainer, and the methods of collective_rpc
// for such weights.
#include "http_proc/control/control.h"
#include "http_proc/control/weight_session.h"
#include "http_proc/format/base64.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"
#include "messages/groups.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

constexpr std::string_view kVllmGroup = "vllm_weight_transfer";

// Packing may be set at the start or in an update; the update has precedence.
void read_packing(FieldReader& fields, VllmPacking& packing) {
    fields.read("packed", packing.is_packed);
    fields.read("packed_buffer_size_bytes", packing.bytes);
}

// Refuses tensors that have the names and layouts of vLLM's own kernels.
void read_checkpoint_format(FieldReader& fields) {
    bool is_checkpoint_format = true;
    fields.read("is_checkpoint_format", is_checkpoint_format);
    if (!is_checkpoint_format)
        fields.refuse(
            "is_checkpoint_format",
            "false: it must be true, and tensors have the checkpoint's names"
        );
}

Task<Response> init_engine(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return vllm_failure(body.error());
    const nlohmann::json* info = FieldReader(*body).find("init_info");
    if (info == nullptr || !info->is_object()) {
        co_return vllm_failure(
            {ErrorCode::kInvalidArgument, "init_info must be an object; for ipc it is empty"}
        );
    }
    FieldReader fields(*info, "init_info");
    VllmPacking packing;
    read_packing(fields, packing);
    messages::InitGroup call;
    call.spec.group = kVllmGroup;
    call.spec.rendezvous = messages::Rendezvous::kVllm;
    std::string backend = "nccl";
    fields.read("backend", backend);
    fields.read("master_address", call.spec.address);
    fields.read("master_port", call.spec.port);
    fields.read("rank_offset", call.spec.rank_offset);
    fields.read("world_size", call.spec.world_size);
    fields.read("store_version", call.spec.store_version);
    std::string unique_id;
    fields.read("nccl_unique_id_b64", unique_id);
    if (backend != "nccl" && backend != "host") fields.fail("backend", "nccl or host");
    const bool has_meeting = !call.spec.address.empty() || !unique_id.empty();
    // A call for ipc names no group. A call that names a group but cannot join one is refused here,
    // because it would fail later with a less clear error.
    if (!has_meeting && (fields.has("world_size") || fields.has("master_port")))
        fields.fail("master_address", "the address where the group meets, or nccl_unique_id_b64");
    if (fields.error()) co_return vllm_failure(*fields.error());
    if (backend == "host") call.spec.backend = messages::GroupBackend::kHost;
    if (!unique_id.empty()) {
        Result<std::vector<std::uint8_t>> id = base64_decode(unique_id);
        if (!id) co_return vllm_failure(id.error());
        call.spec.unique_id.values = *std::move(id);
    }
    if (has_meeting) {
        const Result<messages::GroupReply> reply =
            control::checked(co_await exchange.tree().call(std::move(call), weights::kGroupTimeout)
            );
        if (!reply) co_return vllm_failure(reply.error());
    }
    exchange.server().vllm_packing.of(exchange.tree().number()) = packing;
    co_return Response::json(200, {{"message", "Weight transfer initialized"}});
}

// Reads the update_info of one worker, or of all workers.
Result<> read_payload(FieldReader& fields, messages::WeightSource& source) {
    std::string pickled;
    fields.read("ipc_handles_pickled", pickled);
    if (pickled.empty()) return Ok{};
    ASSIGN_OR_RETURN(messages::RankPayload payload, weights::payload_of(pickled));
    source.kind = messages::SourceKind::kTensors;
    source.format = messages::TensorFormat::kVllmIpc;
    source.payloads.push_back(std::move(payload));
    return Ok{};
}

Result<messages::WeightSource> read_update_info(const nlohmann::json& info, VllmPacking packing) {
    const bool is_list = info.is_array() && !info.empty();
    const nlohmann::json& first = is_list ? info.front() : info;
    if (!first.is_object()) {
        return Error{
            ErrorCode::kInvalidArgument, "update_info must be an object, or a list of them"};
    }
    messages::WeightSource source;
    source.kind = messages::SourceKind::kDistributed;
    source.group = kVllmGroup;
    FieldReader fields(first, "update_info");
    read_packing(fields, packing);
    read_checkpoint_format(fields);
    source.format =
        packing.is_packed ? messages::TensorFormat::kFlattened : messages::TensorFormat::kEach;
    source.packed_bytes = packing.is_packed ? packing.bytes : 0;
    ASSIGN_OR_RETURN(source.tensors, weights::read_tensors(fields, "names", "dtype_names"));
    if (const nlohmann::json* numbers = fields.find("num_updates_list")) {
        source.format = messages::TensorFormat::kSparse;
        if (!numbers->is_array()) fields.fail("num_updates_list", "a list of integers");
        for (const nlohmann::json& number : *numbers) {
            const std::optional<std::int64_t> count = integer_of(number);
            if (!count) fields.fail("num_updates_list", "a list of integers");
            source.num_updates.push_back(count.value_or(0));
        }
    }
    if (fields.error()) return *fields.error();
    for (std::size_t i = 0; i < (is_list ? info.size() : 1); ++i) {
        const nlohmann::json& own = is_list ? info[i] : info;
        if (!own.is_object())
            return Error{ErrorCode::kInvalidArgument, "update_info: an entry is not an object"};
        FieldReader own_fields(own, "update_info");
        RETURN_IF_ERROR(read_payload(own_fields, source));
    }
    return source;
}

Task<Response> update_by_info(
    Exchange& exchange, std::optional<std::uint64_t> session, const nlohmann::json* info
) {
    if (info == nullptr)
        co_return vllm_failure({ErrorCode::kInvalidArgument, "update_info is missing"});
    const VllmPacking packing = exchange.server().vllm_packing.of(exchange.tree().number());
    Result<messages::WeightSource> source = read_update_info(*info, packing);
    if (!source) co_return vllm_failure(source.error());
    control::DiskUpdate update;
    update.source = *std::move(source);
    update.partial = true;
    update.clears_cache = false;
    update.kv_policy = messages::KvPolicy::kKeep;
    const Result<messages::UpdateReply> reply =
        co_await weights::run_update(exchange, session, std::move(update));
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(200, {{"message", "Weights updated"}});
}

// Serves the body that prime-rl posts here. The body names a directory that every rank reads.
Task<Response> update_from_dir(Exchange& exchange, FieldReader& fields) {
    control::DiskUpdate update;
    update.clears_cache = false;
    update.kv_policy = messages::KvPolicy::kKeep;
    fields.read("weight_dir", update.path);
    fields.read("version_uid", update.label);
    if (fields.error()) co_return vllm_failure(*fields.error());
    const Result<messages::UpdateReply> reply =
        co_await control::update_from_disk(exchange, std::move(update));
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(200, {{"status", "ok"}, {"message", "Weights updated"}});
}

Task<Response> update_weights(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    if (fields.error()) co_return vllm_failure(*fields.error());
    if (fields.has("weight_dir")) {
        exchange.set_known_to_tree();  // the directory has a whole version, not a part of one
        co_return co_await update_from_dir(exchange, fields);
    }
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    if (fields.error()) co_return vllm_failure(*fields.error());
    co_return co_await update_by_info(exchange, session, fields.find("update_info"));
}

// Begins a session, for vLLM's route and for SkyRL's method.
Task<Result<messages::UpdateReply>> begin_by(Exchange& exchange, FieldReader& fields) {
    read_checkpoint_format(fields);
    const weights::Beginning beginning = weights::read_beginning(fields);
    if (fields.error()) co_return *fields.error();
    co_return co_await weights::begin_session(exchange, beginning);
}

Task<Result<messages::UpdateReply>> finish_by(Exchange& exchange, FieldReader& fields) {
    std::string label;
    fields.read("weight_version", label);
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    if (fields.error()) co_return *fields.error();
    co_return co_await weights::commit_session(exchange, session, std::move(label));
}

Task<Response> start_weight_update(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    const Result<messages::UpdateReply> reply = co_await begin_by(exchange, fields);
    if (!reply) co_return vllm_failure(reply.error());
    std::string message = "Weight update started";
    if (!reply->verdict.message.empty()) message += ". " + reply->verdict.message;
    co_return Response::json(200, {{"message", message}, {"session", reply->session}});
}

Task<Response> finish_weight_update(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    const Result<messages::UpdateReply> reply = co_await finish_by(exchange, fields);
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(200, {{"message", "Weight update finished"}});
}

}  // namespace

Response rpc_done(Exchange& exchange) {
    const auto tp = static_cast<std::size_t>(exchange.tree().hello().tp);
    return Response::json(200, {{"results", std::vector<std::nullptr_t>(tp)}});
}

// Serves SkyRL's method that corresponds to /start_weight_update.
Task<Response> start_update_by_rpc(Exchange& exchange, const nlohmann::json& kwargs) {
    FieldReader fields(kwargs, "kwargs");
    const Result<messages::UpdateReply> reply = co_await begin_by(exchange, fields);
    if (!reply) co_return vllm_failure(reply.error());
    co_return rpc_done(exchange);
}

Task<Response> update_weights_by_rpc(Exchange& exchange, const nlohmann::json& kwargs) {
    FieldReader fields(kwargs, "kwargs");
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    if (fields.error()) co_return vllm_failure(*fields.error());
    Response answer = co_await update_by_info(exchange, session, fields.find("update_info"));
    if (answer.status == 200) co_return rpc_done(exchange);
    co_return answer;
}

// Serves SkyRL's method that corresponds to /finish_weight_update.
Task<Response> finish_update_by_rpc(Exchange& exchange, const nlohmann::json& kwargs) {
    FieldReader fields(kwargs, "kwargs");
    const Result<messages::UpdateReply> reply = co_await finish_by(exchange, fields);
    if (!reply) co_return vllm_failure(reply.error());
    co_return rpc_done(exchange);
}

// Serves the call of checkpoint-engine, whose args are [handles].
Task<Response> update_from_ipc_by_rpc(Exchange& exchange, const nlohmann::json* args) {
    const bool has_handles = args != nullptr && args->is_array() && args->size() == 1;
    auto handles = weights::read_handles(has_handles ? &args->front() : nullptr);
    if (!handles) co_return vllm_failure(handles.error());
    control::DiskUpdate update;
    update.clears_cache = false;
    update.kv_policy = messages::KvPolicy::kKeep;
    update.source.emplace();
    update.source->kind = messages::SourceKind::kIpc;
    update.source->handles = *std::move(handles);
    const Result<messages::UpdateReply> reply =
        co_await weights::run_update(exchange, std::nullopt, std::move(update));
    if (!reply) co_return vllm_failure(reply.error());
    co_return rpc_done(exchange);
}

void add_vllm_weight_transfer(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kAdmin,
        {
            {"POST", "/init_weight_transfer_engine", init_engine},
            {"POST", "/start_weight_update", start_weight_update},
            {"POST", "/finish_weight_update", finish_weight_update},
        }
    );
    router.add_weights(Dialect::kVllm, {{"POST", "/update_weights", update_weights}});
}

}  // namespace pitstop::http
