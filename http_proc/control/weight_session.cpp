#include "http_proc/control/weight_session.h"

#include "http_proc/format/base64.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <utility>

namespace pitstop::http::weights {
namespace {

Error busy() {
    return {
        ErrorCode::kFailedPrecondition,
        "a call of the open weight update is under way; wait for its answer"};
}

// Makes a call in the open session, one at a time. REQUIRES: it is open and not busy.
template <class Call>
Task<Result<messages::UpdateReply>> call_in_session(Exchange& exchange, Call call) {
    WeightSession& session = exchange.server().weight_session;
    session.is_busy = true;
    call.session = session.number;
    const Result<messages::UpdateReply> reply =
        co_await exchange.tree().call(std::move(call), control::kTimeout);
    session.is_busy = false;
    if (reply && !is_open(*reply)) session = {};
    co_return control::checked(reply);
}

}  // namespace

Result<std::vector<messages::TensorInfo>> read_tensors(
    FieldReader& fields, std::string_view names_field, std::string_view dtypes_field
) {
    std::vector<std::string> names;
    std::vector<std::string> dtypes;
    fields.read(names_field, names);
    fields.read(dtypes_field, dtypes);
    std::vector<messages::TensorInfo> tensors;
    const nlohmann::json* shapes = fields.find("shapes");
    // Clients that send one tensor may give its shape alone.
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
        messages::TensorInfo& tensor = tensors.emplace_back();
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

Result<messages::RankPayload> payload_of(const std::string& base64) {
    messages::RankPayload payload;
    ASSIGN_OR_RETURN(payload.data.values, base64_decode(base64));
    return payload;
}

bool is_open(const messages::UpdateReply& reply) {
    return reply.state == messages::UpdateState::kOpen;
}

Task<Result<messages::UpdateReply>> begin_session(Exchange& exchange) {
    if (exchange.server().weight_session.is_busy) co_return busy();
    messages::BeginUpdate call;
    call.update.source.kind = messages::SourceKind::kBuckets;
    call.update.partial = true;
    Result<messages::UpdateReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), control::kTimeout));
    if (reply) exchange.server().weight_session = {.number = reply->session};
    co_return reply;
}

Task<Result<messages::UpdateReply>> commit_session(Exchange& exchange, std::string label) {
    const WeightSession& session = exchange.server().weight_session;
    if (session.is_busy) co_return busy();
    if (session.number == 0) {
        co_return Error{
            ErrorCode::kFailedPrecondition, "no weight update is open; begin one first"};
    }
    messages::CommitWeights call;
    if (label.empty()) label = session.label;
    call.label = std::move(label);
    co_return co_await call_in_session(exchange, std::move(call));
}

Task<Result<messages::UpdateReply>> run_update(Exchange& exchange, control::DiskUpdate update) {
    WeightSession& session = exchange.server().weight_session;
    if (session.number == 0)
        co_return co_await control::update_from_disk(exchange, std::move(update));
    if (session.is_busy) co_return busy();
    if (update.aborts_all) {
        const Result<messages::AbortReply> aborted = co_await control::abort_all(exchange);
        if (!aborted) co_return aborted.error();
        if (session.is_busy || session.number == 0) co_return busy();  // meanwhile
    }
    if (!update.label.empty()) session.label = std::move(update.label);
    messages::UpdateBucket call;
    call.source = *std::move(update.source);
    co_return co_await call_in_session(exchange, std::move(call));
}

}  // namespace pitstop::http::weights
