// Serves SGLang's routes for weights from a running trainer, and the session of its MILES branch.
#include "http_proc/sglang/weight_transfer.h"

#include "http_proc/control/control.h"
#include "http_proc/control/weight_session.h"
#include "http_proc/format/base64.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/update_seconds_json.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"
#include "messages/groups.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::ordered_json;

Json ranks_of(const messages::UpdateReply& reply) {
    Json ranks = Json::array();
    for (const messages::ReplicaOutcome& replica : reply.replicas) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            Json& json = ranks.emplace_back(Json{
                {"replica", raw(replica.replica)},
                {"rank", raw(rank.rank)},
                {"bytes", rank.bytes},
                {"tensors", rank.tensors}});
            add_seconds(json, rank.stage);
            json["commit_s"] = rank.commit_s;
        }
    }
    return ranks;
}

Response success(
    std::string message, const std::string& label, const messages::UpdateReply& reply
) {
    if (!label.empty() && !weights::is_open(reply) &&
        reply.state != messages::UpdateState::kCollecting)
        message += fmt::format(" Weight version updated to {}.", label);
    if (!reply.verdict.message.empty()) message += " " + reply.verdict.message;
    Json answer{
        {"success", true},
        {"message", message},
        {"weight_epoch", raw(reply.epoch)},
        {"weight_digest", reply.digest},
        {"bytes", reply.bytes}};
    add_seconds(answer, reply.seconds);
    answer["ranks"] = ranks_of(reply);
    return Response::json(200, answer);
}

// Reads the fields that all of a trainer's updates have.
control::DiskUpdate read_common(FieldReader& fields) {
    control::DiskUpdate update;
    fields.read("weight_version", update.label);
    fields.read("flush_cache", update.clears_cache);
    fields.read("abort_all_requests", update.aborts_all);
    return update;
}

Task<Response> update_weights_from_ipc(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    control::DiskUpdate update = read_common(fields);
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    if (fields.error()) co_return sglang_failure(*fields.error());
    auto handles = weights::read_handles(fields.find("zmq_handles"));
    if (!handles) co_return sglang_failure(handles.error());
    update.source.emplace();
    update.source->kind = messages::SourceKind::kIpc;
    update.source->handles = *std::move(handles);
    const std::string label = update.label;
    const Result<messages::UpdateReply> reply =
        co_await weights::run_update(exchange, session, std::move(update));
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("IPC weight update completed successfully", label, *reply);
}

Task<Response> update_weights_from_tensor(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    control::DiskUpdate update = read_common(fields);
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    std::vector<std::string> serialized;
    std::string load_format;
    fields.read("serialized_named_tensors", serialized);
    fields.read("load_format", load_format);
    if (serialized.empty() && !fields.error())
        fields.fail("serialized_named_tensors", "a base64 text per rank");
    // "direct" means the engine's own names. pitstop's own names are those of the checkpoint.
    constexpr std::array<std::string_view, 4> kFormats{"", "auto", "direct", "flattened_bucket"};
    if (std::ranges::count(kFormats, load_format) == 0)
        fields.refuse("load_format", "accepted are null, direct and flattened_bucket");
    if (fields.error()) co_return sglang_failure(*fields.error());
    update.partial = true;
    update.source.emplace();
    update.source->kind = messages::SourceKind::kTensors;
    update.source->format = messages::TensorFormat::kPickle;
    for (const std::string& base64 : serialized) {
        Result<messages::RankPayload> payload = weights::payload_of(base64);
        if (!payload) co_return sglang_failure(payload.error());
        update.source->payloads.push_back(*std::move(payload));
    }
    const std::string label = update.label;
    const Result<messages::UpdateReply> reply =
        co_await weights::run_update(exchange, session, std::move(update));
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("Success", label, *reply);
}

Task<Response> init_group(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    co_return co_await init_group_of(exchange, *body);
}

}  // namespace

Task<Response> init_group_of(Exchange& exchange, const nlohmann::json& body) {
    FieldReader fields(body);
    messages::InitGroup call;
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
    if (backend == "host") call.spec.backend = messages::GroupBackend::kHost;
    if (!unique_id.empty()) {
        Result<std::vector<std::uint8_t>> id = base64_decode(unique_id);
        if (!id) co_return sglang_failure(id.error());
        call.spec.rendezvous = messages::Rendezvous::kDirect;
        call.spec.unique_id.values = *std::move(id);
    }
    const Result<messages::GroupReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), weights::kGroupTimeout));
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

namespace {

Task<Response> destroy_group(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    messages::DestroyGroup call;
    call.group = "weight_update_group";
    fields.read("group_name", call.group);
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<messages::GroupReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), weights::kGroupTimeout));
    if (!reply) co_return sglang_failure(reply.error());
    co_return Response::json(
        200, {{"success", true}, {"message", "Succeeded to destroy custom process group."}}
    );
}

Task<Response> update_weights_from_distributed(Exchange& exchange) {
    const Result<nlohmann::json> body = parse_json_object(exchange.request().body);
    if (!body) co_return sglang_failure(body.error());
    co_return co_await update_from_group(exchange, *body);
}

}  // namespace

Task<Response> update_from_group(Exchange& exchange, const nlohmann::json& body) {
    FieldReader fields(body);
    control::DiskUpdate update = read_common(fields);
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    update.partial = true;
    update.source.emplace();
    messages::WeightSource& source = *update.source;
    source.kind = messages::SourceKind::kDistributed;
    source.group = "weight_update_group";
    std::string load_format;
    fields.read("group_name", source.group);
    fields.read("load_format", load_format);
    if (!load_format.empty() && load_format != "flattened_bucket")
        fields.refuse("load_format", "accepted are null and flattened_bucket");
    source.format = load_format == "flattened_bucket" ? messages::TensorFormat::kFlattened
                                                      : messages::TensorFormat::kEach;
    const bool is_singular = !fields.has("names");
    auto tensors = weights::read_tensors(
        fields, is_singular ? "name" : "names", is_singular ? "dtype" : "dtypes"
    );
    if (fields.error()) co_return sglang_failure(*fields.error());
    if (!tensors) co_return sglang_failure(tensors.error());
    source.tensors = *std::move(tensors);
    const std::string label = update.label;
    const Result<messages::UpdateReply> reply =
        co_await weights::run_update(exchange, session, std::move(update));
    if (!reply) {
        co_return sglang_failure(
            {reply.error().code, "Failed to update parameter online: " + reply.error().message}
        );
    }
    co_return success("Succeeded to update parameter online.", label, *reply);
}

namespace {

Task<Response> begin_weight_update(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    const weights::Beginning beginning = weights::read_beginning(fields);
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<messages::UpdateReply> reply =
        co_await weights::begin_session(exchange, beginning);
    if (!reply) co_return sglang_failure(reply.error());
    std::string message = "Success";
    if (!reply->verdict.message.empty()) message += ". " + reply->verdict.message;
    co_return Response::json(
        200, {{"success", true}, {"message", message}, {"session", reply->session}}
    );
}

Task<Response> end_weight_update(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    std::string label;
    fields.read("weight_version", label);
    const std::optional<std::uint64_t> session = weights::read_session(exchange, fields);
    if (fields.error()) co_return sglang_failure(*fields.error());
    const Result<messages::UpdateReply> reply =
        co_await weights::commit_session(exchange, session, label);
    if (!reply) co_return sglang_failure(reply.error());
    co_return success("Success", label, *reply);
}

}  // namespace

void add_sglang_weight_transfer(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {
            {"POST", "/init_weights_update_group", init_group},
            {"POST", "/destroy_weights_update_group", destroy_group},
            {"POST", "/begin_weight_update", begin_weight_update},
            {"POST", "/end_weight_update", end_weight_update},
        }
    );
    router.add_weights(
        Dialect::kSglang,
        {
            {"POST", "/update_weights_from_distributed", update_weights_from_distributed},
            {"POST", "/update_weights_from_tensor", update_weights_from_tensor},
            {"POST", "/update_weights_from_ipc", update_weights_from_ipc},
        }
    );
}

}  // namespace pitstop::http
