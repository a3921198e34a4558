// Weights that come from a running trainer or a checkpoint engine: SGLang's routes, with the
// session that its MILES branch has, and vLLM's four.
//
// Without a session each call is an update of its own. Between /begin_weight_update (vLLM:
// /start_weight_update) and /end_weight_update (/finish_weight_update) the calls are buckets of one
// update, which takes effect as a whole at its end, or not at all. A call that the tree could not
// read leaves the session open, one that fails in it ends it: that is what the tree does.
#include "http_proc/base64.h"
#include "http_proc/control.h"
#include "http_proc/control_fields.h"
#include "http_proc/control_routes.h"
#include "http_proc/errors.h"
#include "http_proc/json_body.h"
#include "http_proc/sglang_answers.h"
#include "messages/groups.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace pitstop {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kVllmGroup = "vllm_weight_transfer";
constexpr std::chrono::minutes kGroupTimeout{5};

Response vllm_failure(const Error& error) { return error_response(Dialect::kVllm, error); }

// ---- what bodies say ----

Result<std::vector<TensorInfo>> read_tensors(
    FieldReader& fields, std::string_view names_field, std::string_view dtypes_field
) {
    std::vector<std::string> names;
    std::vector<std::string> dtypes;
    fields.read(names_field, names);
    fields.read(dtypes_field, dtypes);
    std::vector<TensorInfo> tensors;
    const nlohmann::json* shapes = fields.find("shapes");
    // One tensor, by clients that send its shape alone.
    const nlohmann::json* shape = fields.find("shape");
    const nlohmann::json one = shape != nullptr ? nlohmann::json::array({*shape}) : nullptr;
    if (shapes == nullptr && shape != nullptr) shapes = &one;
    if (shapes == nullptr || !shapes->is_array() || shapes->size() != names.size() ||
        dtypes.size() != names.size()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}, {} and shapes must be lists of one length",
            names_field,
            dtypes_field
        );
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        TensorInfo& tensor = tensors.emplace_back();
        tensor.name = names[i];
        tensor.dtype = dtypes[i];
        if (!(*shapes)[i].is_array())
            return make_error(ErrorCode::kInvalidArgument, "shapes[{}] is no list", i);
        for (const nlohmann::json& extent : (*shapes)[i]) {
            const std::optional<std::int64_t> number = integer_of(extent);
            if (!number)
                return make_error(ErrorCode::kInvalidArgument, "shapes[{}] is no list of sizes", i);
            tensor.shape.push_back(*number);
        }
    }
    return tensors;
}

Result<std::map<std::string, std::string>> read_handles(const nlohmann::json* object) {
    if (object == nullptr || !object->is_object()) {
        return Error{
            ErrorCode::kInvalidArgument, "zmq_handles must be an object: device uuid to address"};
    }
    std::map<std::string, std::string> handles;
    for (const auto& [device, endpoint] : object->items()) {
        if (!endpoint.is_string())
            return Error{ErrorCode::kInvalidArgument, "zmq_handles: an address is no string"};
        handles[device] = endpoint.get<std::string>();
    }
    return handles;
}

Result<RankPayload> payload_of(const std::string& base64) {
    RankPayload payload;
    ASSIGN_OR_RETURN(payload.data.values, base64_decode(base64));
    return payload;
}

// ---- what is done ----

// Whether a session is open after it: this was a bucket of it.
bool is_open(const UpdateReply& reply) { return reply.state == "open"; }

Json ranks_of(const UpdateReply& reply) {
    Json ranks = Json::array();
    for (const ReplicaOutcome& replica : reply.replicas) {
        for (const RankOutcome& rank : replica.ranks) {
            ranks.push_back(
                {{"replica", raw(replica.replica)},
                 {"rank", raw(rank.rank)},
                 {"bytes", rank.bytes},
                 {"tensors", rank.tensors},
                 {"receive_s", rank.receive_s},
                 {"verify_s", rank.verify_s},
                 {"commit_s", rank.commit_s}}
            );
        }
    }
    return ranks;
}

Response success(std::string message, const std::string& label, const UpdateReply& reply) {
    if (!label.empty() && !is_open(reply))
        message += fmt::format(" Weight version updated to {}.", label);
    if (!reply.message.empty()) message += " " + reply.message;
    return Response::json(
        200,
        {{"success", true},
         {"message", message},
         {"weight_epoch", raw(reply.epoch)},
         {"weight_digest", reply.digest},
         {"bytes", reply.bytes},
         {"receive_s", reply.receive_s},
         {"verify_s", reply.verify_s},
         {"vote_s", reply.vote_s},
         {"pause_s", reply.pause_s},
         {"commit_s", reply.commit_s},
         {"total_s", reply.total_s},
         {"ranks", ranks_of(reply)}}
    );
}

Error busy() {
    return {
        ErrorCode::kFailedPrecondition,
        "a call of the open weight update is under way; wait for its answer"};
}

// A call in the open session, one at a time. REQUIRES: it is open and not busy.
template <class Call>
Task<Result<UpdateReply>> call_in_session(Exchange& exchange, Call call) {
    WeightSession& session = exchange.server().weight_session;
    session.is_busy = true;
    call.session = session.number;
    const Result<UpdateReply> reply =
        co_await exchange.tree().call(std::move(call), control::kTimeout);
    session.is_busy = false;
    if (reply && !is_open(*reply)) session = {};
    co_return control::checked(reply);
}

Task<Result<UpdateReply>> begin_session(Exchange& exchange) {
    if (exchange.server().weight_session.is_busy) co_return busy();
    BeginUpdate call;
    call.update.source.kind = SourceKind::kBuckets;
    call.update.partial = true;
    Result<UpdateReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), control::kTimeout));
    if (reply) exchange.server().weight_session = {.number = reply->session};
    co_return reply;
}

Task<Result<UpdateReply>> commit_session(Exchange& exchange, std::string label) {
    const WeightSession& session = exchange.server().weight_session;
    if (session.is_busy) co_return busy();
    if (session.number == 0) {
        co_return Error{
            ErrorCode::kFailedPrecondition, "no weight update is open; begin one first"};
    }
    CommitWeights call;
    call.label = label.empty() ? session.label : std::move(label);
    co_return co_await call_in_session(exchange, std::move(call));
}

// In the open session, or as an update of its own.
Task<Result<UpdateReply>> take(Exchange& exchange, control::DiskUpdate update) {
    WeightSession& session = exchange.server().weight_session;
    if (session.number == 0)
        co_return co_await control::update_from_disk(exchange, std::move(update));
    if (session.is_busy) co_return busy();
    if (update.aborts_all) {
        const Result<AbortReply> aborted = co_await control::abort_all(exchange);
        if (!aborted) co_return aborted.error();
        if (session.is_busy || session.number == 0) co_return busy();  // meanwhile
    }
    if (!update.label.empty()) session.label = std::move(update.label);
    UpdateBucket call;
    call.source = *std::move(update.source);
    co_return co_await call_in_session(exchange, std::move(call));
}

// ---- SGLang ----

// What every update of a trainer's may say.
control::DiskUpdate read_common(FieldReader& fields) {
    control::DiskUpdate update;
    fields.read("weight_version", update.label);
    fields.read("flush_cache", update.clears_cache);
    fields.read("abort_all_requests", update.aborts_all);
    return update;
}

Task<Response> update_weights_from_ipc(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    control::DiskUpdate update = read_common(fields);
    if (fields.error()) co_return sglang_failure(*fields.error());
    auto handles = read_handles(fields.find("zmq_handles"));
    if (!handles) co_return sglang_failure(handles.error());
    update.source.emplace();
    update.source->kind = SourceKind::kIpc;
    update.source->handles = *std::move(handles);
    const std::string label = update.label;
    const Result<UpdateReply> reply = co_await take(exchange, std::move(update));
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("IPC weight update completed successfully", label, *reply);
}

Task<Response> update_weights_from_tensor(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    control::DiskUpdate update = read_common(fields);
    std::vector<std::string> serialized;
    std::string load_format;
    fields.read("serialized_named_tensors", serialized);
    fields.read("load_format", load_format);
    if (serialized.empty() && !fields.error())
        fields.fail("serialized_named_tensors", "a base64 text per rank");
    // direct: by the engine's own names, which are the checkpoint's here.
    constexpr std::array<std::string_view, 4> kFormats{"", "auto", "direct", "flattened_bucket"};
    if (std::ranges::count(kFormats, load_format) == 0)
        fields.refuse("load_format", "there are null, direct and flattened_bucket");
    if (fields.error()) co_return sglang_failure(*fields.error());
    update.partial = true;
    update.source.emplace();
    update.source->kind = SourceKind::kTensors;
    update.source->format = TensorFormat::kPickle;
    for (const std::string& base64 : serialized) {
        Result<RankPayload> payload = payload_of(base64);
        if (!payload) co_return sglang_failure(payload.error());
        update.source->payloads.push_back(*std::move(payload));
    }
    const std::string label = update.label;
    const Result<UpdateReply> reply = co_await take(exchange, std::move(update));
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("Success", label, *reply);
}

Task<Response> init_group(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    InitGroup call;
    call.spec.group = "weight_update_group";
    std::string backend = "nccl";
    std::string unique_id;
    fields.read("group_name", call.spec.group);
    fields.read("backend", backend);
    fields.read("nccl_unique_id", unique_id);
    fields.read("master_address", call.spec.address);
    fields.read("master_port", call.spec.port);
    fields.read("rank_offset", call.spec.rank_offset);
    fields.read("world_size", call.spec.world_size);
    fields.read("store_version", call.spec.store_version);
    if (backend != "nccl" && backend != "host") fields.fail("backend", "nccl or host");
    if (fields.error()) co_return sglang_failure(*fields.error());
    if (backend == "host") call.spec.backend = GroupBackend::kHost;
    if (!unique_id.empty()) {
        Result<std::vector<std::uint8_t>> id = base64_decode(unique_id);
        if (!id) co_return sglang_failure(id.error());
        call.spec.rendezvous = Rendezvous::kDirect;
        call.spec.unique_id.values = *std::move(id);
    }
    const Result<GroupReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), kGroupTimeout));
    if (!reply) {
        co_return sglang_failure(
            {reply.error().code,
             "Failed to initialize custom process group: " + reply.error().message}
        );
    }
    co_return Response::json(
        200, {{"success", true}, {"message", "Succeeded to initialize custom process group."}}
    );
}

Task<Response> destroy_group(Exchange& exchange) {
    const Result<nlohmann::json> body = control_fields(exchange.request());
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    DestroyGroup call;
    call.group = "weight_update_group";
    fields.read("group_name", call.group);
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<GroupReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), kGroupTimeout));
    if (!reply) co_return sglang_failure(reply.error());
    co_return Response::json(
        200, {{"success", true}, {"message", "Succeeded to destroy custom process group."}}
    );
}

Task<Response> update_weights_from_distributed(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    control::DiskUpdate update = read_common(fields);
    update.partial = true;
    update.source.emplace();
    WeightSource& source = *update.source;
    source.kind = SourceKind::kDistributed;
    source.group = "weight_update_group";
    std::string load_format;
    fields.read("group_name", source.group);
    fields.read("load_format", load_format);
    if (!load_format.empty() && load_format != "flattened_bucket")
        fields.refuse("load_format", "there are null and flattened_bucket");
    source.format =
        load_format == "flattened_bucket" ? TensorFormat::kFlattened : TensorFormat::kEach;
    const bool is_singular = !fields.has("names");
    auto tensors =
        read_tensors(fields, is_singular ? "name" : "names", is_singular ? "dtype" : "dtypes");
    if (fields.error()) co_return sglang_failure(*fields.error());
    if (!tensors) co_return sglang_failure(tensors.error());
    source.tensors = *std::move(tensors);
    const std::string label = update.label;
    const Result<UpdateReply> reply = co_await take(exchange, std::move(update));
    if (!reply) {
        co_return sglang_failure(
            {reply.error().code, "Failed to update parameter online: " + reply.error().message}
        );
    }
    co_return success("Succeeded to update parameter online.", label, *reply);
}

Task<Response> begin_weight_update(Exchange& exchange) {
    const Result<UpdateReply> reply = co_await begin_session(exchange);
    if (!reply) co_return sglang_failure(reply.error());
    co_return Response::json(
        200, {{"success", true}, {"message", "Success"}, {"session", reply->session}}
    );
}

Task<Response> end_weight_update(Exchange& exchange) {
    const Result<nlohmann::json> body = control_fields(exchange.request());
    if (!body) co_return sglang_failure(body.error());
    FieldReader fields(*body);
    std::string label;
    fields.read("weight_version", label);
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<UpdateReply> reply = co_await commit_session(exchange, label);
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("Success", label, *reply);
}

// ---- vLLM ----

// Packing may be named at the start or with each update; the latter wins.
void read_packing(FieldReader& fields, VllmPacking& packing) {
    fields.read("packed", packing.is_packed);
    fields.read("packed_buffer_size_bytes", packing.bytes);
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
    InitGroup call;
    call.spec.group = kVllmGroup;
    call.spec.rendezvous = Rendezvous::kVllm;
    std::string backend = "nccl";
    fields.read("backend", backend);
    fields.read("master_address", call.spec.address);
    fields.read("master_port", call.spec.port);
    fields.read("rank_offset", call.spec.rank_offset);
    fields.read("world_size", call.spec.world_size);
    fields.read("store_version", call.spec.store_version);
    if (backend != "nccl" && backend != "host") fields.fail("backend", "nccl or host");
    if (fields.error()) co_return vllm_failure(*fields.error());
    if (backend == "host") call.spec.backend = GroupBackend::kHost;
    if (!call.spec.address.empty()) {  // without one: ipc, which needs nothing
        const Result<GroupReply> reply =
            control::checked(co_await exchange.tree().call(std::move(call), kGroupTimeout));
        if (!reply) co_return vllm_failure(reply.error());
    }
    exchange.server().vllm_packing = packing;
    co_return Response::json(200, {{"message", "Weight transfer initialized"}});
}

// One worker's update_info, or of all.
Result<> read_payload(FieldReader& fields, WeightSource& source) {
    std::string pickled;
    fields.read("ipc_handles_pickled", pickled);
    if (pickled.empty()) return Ok{};
    ASSIGN_OR_RETURN(RankPayload payload, payload_of(pickled));
    source.kind = SourceKind::kTensors;
    source.format = TensorFormat::kVllmIpc;
    source.payloads.push_back(std::move(payload));
    return Ok{};
}

Result<WeightSource> read_update_info(const nlohmann::json& info, VllmPacking packing) {
    const bool is_list = info.is_array() && !info.empty();
    const nlohmann::json& first = is_list ? info.front() : info;
    if (!first.is_object()) {
        return Error{
            ErrorCode::kInvalidArgument, "update_info must be an object, or a list of them"};
    }
    WeightSource source;
    source.kind = SourceKind::kDistributed;
    source.group = kVllmGroup;
    FieldReader fields(first, "update_info");
    read_packing(fields, packing);
    bool is_checkpoint_format = true;
    fields.read("is_checkpoint_format", is_checkpoint_format);
    if (!is_checkpoint_format)
        fields.refuse("is_checkpoint_format", "false: the names are a checkpoint's");
    source.format = packing.is_packed ? TensorFormat::kFlattened : TensorFormat::kEach;
    source.packed_bytes = packing.is_packed ? packing.bytes : 0;
    ASSIGN_OR_RETURN(source.tensors, read_tensors(fields, "names", "dtype_names"));
    if (const nlohmann::json* numbers = fields.find("num_updates_list")) {
        source.format = TensorFormat::kSparse;
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
            return Error{ErrorCode::kInvalidArgument, "update_info: an entry is no object"};
        FieldReader own_fields(own, "update_info");
        RETURN_IF_ERROR(read_payload(own_fields, source));
    }
    return source;
}

Task<Response> update_by_info(Exchange& exchange, const nlohmann::json* info) {
    if (info == nullptr)
        co_return vllm_failure({ErrorCode::kInvalidArgument, "update_info is missing"});
    Result<WeightSource> source = read_update_info(*info, exchange.server().vllm_packing);
    if (!source) co_return vllm_failure(source.error());
    control::DiskUpdate update;
    update.source = *std::move(source);
    update.partial = true;
    update.clears_cache = false;
    update.kv_policy = KvPolicy::kKeep;
    const Result<UpdateReply> reply = co_await take(exchange, std::move(update));
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(200, {{"message", "Weights updated"}});
}

Task<Response> update_weights(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return vllm_failure(body.error());
    FieldReader fields(*body);
    co_return co_await update_by_info(exchange, fields.find("update_info"));
}

Task<Response> start_weight_update(Exchange& exchange) {
    const Result<UpdateReply> reply = co_await begin_session(exchange);
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(200, {{"message", "Weight update started"}});
}

Task<Response> finish_weight_update(Exchange& exchange) {
    const Result<nlohmann::json> body = control_fields(exchange.request());
    if (!body) co_return vllm_failure(body.error());
    FieldReader fields(*body);
    std::string label;
    fields.read("weight_version", label);
    if (fields.error()) co_return vllm_failure(*fields.error());
    const Result<UpdateReply> reply = co_await commit_session(exchange, label);
    if (!reply) co_return vllm_failure(reply.error());
    co_return Response::json(200, {{"message", "Weight update finished"}});
}

}  // namespace

Task<Response> update_weights_by_rpc(Exchange& exchange, const nlohmann::json& kwargs) {
    FieldReader fields(kwargs, "kwargs");
    co_return co_await update_by_info(exchange, fields.find("update_info"));
}

// checkpoint-engine's call: args are [handles].
Task<Response> update_from_ipc_by_rpc(Exchange& exchange, const nlohmann::json* args) {
    const bool has_handles = args != nullptr && args->is_array() && args->size() == 1;
    auto handles = read_handles(has_handles ? &args->front() : nullptr);
    if (!handles) co_return vllm_failure(handles.error());
    control::DiskUpdate update;
    update.clears_cache = false;
    update.kv_policy = KvPolicy::kKeep;
    update.source.emplace();
    update.source->kind = SourceKind::kIpc;
    update.source->handles = *std::move(handles);
    const Result<UpdateReply> reply = co_await take(exchange, std::move(update));
    if (!reply) co_return vllm_failure(reply.error());
    const auto tp = static_cast<std::size_t>(exchange.tree().hello().tp);
    co_return Response::json(200, {{"results", std::vector<std::nullptr_t>(tp)}});
}

void add_weight_transfer(Router& router) {
    const auto add = [&](std::string_view path, Dialect dialect, Handler handler) {
        router.add(
            {.methods = "POST",
             .path = path,
             .dialect = dialect,
             .access = Access::kAdmin,
             .handler = handler}
        );
    };
    add("/init_weights_update_group", Dialect::kSglang, init_group);
    add("/destroy_weights_update_group", Dialect::kSglang, destroy_group);
    add("/update_weights_from_distributed", Dialect::kSglang, update_weights_from_distributed);
    add("/update_weights_from_tensor", Dialect::kSglang, update_weights_from_tensor);
    add("/update_weights_from_ipc", Dialect::kSglang, update_weights_from_ipc);
    add("/begin_weight_update", Dialect::kSglang, begin_weight_update);
    add("/end_weight_update", Dialect::kSglang, end_weight_update);
    add("/init_weight_transfer_engine", Dialect::kVllm, init_engine);
    add("/start_weight_update", Dialect::kVllm, start_weight_update);
    add("/update_weights", Dialect::kVllm, update_weights);
    add("/finish_weight_update", Dialect::kVllm, finish_weight_update);
}

}  // namespace pitstop
