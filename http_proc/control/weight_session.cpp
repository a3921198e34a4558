#include "http_proc/control/weight_session.h"

#include "base/time.h"
#include "http_proc/format/base64.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <utility>

namespace pitstop::http::weights {
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
            "{}, {} and shapes must be lists of equal length",
            names_field,
            dtypes_field
        );
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        messages::TensorInfo& tensor = tensors.emplace_back();
        tensor.name = names[i];
        tensor.dtype = dtypes[i];
        if (!(*shapes)[i].is_array())
            return make_error(ErrorCode::kInvalidArgument, "shapes[{}] is not a list", i);
        for (const nlohmann::json& extent : (*shapes)[i]) {
            const std::optional<std::int64_t> number = integer_of(extent);
            if (!number)
                return make_error(
                    ErrorCode::kInvalidArgument, "shapes[{}] is not a list of sizes", i
                );
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
            return Error{ErrorCode::kInvalidArgument, "zmq_handles: an address is not a string"};
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

Beginning read_beginning(FieldReader& fields) {
    constexpr double kIdleMaxS = 24 * 3600;
    Beginning beginning;
    double idle_s = seconds(beginning.idle_timeout);
    fields.read("take_over", beginning.takes_over);
    fields.read("idle_timeout_s", idle_s);
    if (!(idle_s >= 0.001 && idle_s <= kIdleMaxS))
        fields.fail("idle_timeout_s", "more than 0 seconds, at most a day");
    beginning.idle_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(idle_s * 1000));
    return beginning;
}

std::optional<std::uint64_t> read_session(Exchange& exchange, FieldReader& fields) {
    // A refused bucket of a named session is no part of the collected version.
    if (fields.has("session")) exchange.set_known_to_tree();
    std::optional<std::uint64_t> session;
    fields.read("session", session);
    if (session && *session == 0)
        fields.fail("session", "the session number that the begin returned");
    return session;
}

Task<Result<messages::UpdateReply>> begin_session(Exchange& exchange, Beginning beginning) {
    messages::BeginUpdate call;
    call.update.source.kind = messages::SourceKind::kBuckets;
    call.update.partial = true;
    call.take_over = beginning.takes_over;
    call.idle_timeout_ms = beginning.idle_timeout.count();
    call.unnamed = true;
    call.holder = fmt::format("an HTTP client at {}", exchange.address());
    co_return control::checked(co_await exchange.tree().call(std::move(call), control::kTimeout));
}

Task<Result<messages::UpdateReply>> commit_session(
    Exchange& exchange, std::optional<std::uint64_t> session, std::string label
) {
    messages::CommitWeights call;
    call.session = session.value_or(0);
    call.unnamed = !session;
    call.label = std::move(label);
    co_return control::checked(co_await exchange.tree().call(std::move(call), control::kTimeout));
}

Task<Result<messages::UpdateReply>> drop_session(
    Exchange& exchange, std::optional<std::uint64_t> session
) {
    messages::DropStage call;
    call.session = session.value_or(0);
    call.unnamed = !session;
    co_return control::checked(co_await exchange.tree().call(std::move(call), control::kTimeout));
}

Task<Result<messages::UpdateReply>> run_update(
    Exchange& exchange, std::optional<std::uint64_t> session, control::DiskUpdate update
) {
    if (!session) {
        update.is_unnamed = true;
        co_return co_await control::update_from_disk(exchange, std::move(update));
    }
    messages::UpdateBucket call;
    call.session = *session;
    call.label = std::move(update.label);
    call.source = *std::move(update.source);
    exchange.set_known_to_tree();
    Result<messages::UpdateReply> reply =
        control::checked(co_await exchange.tree().call(std::move(call), control::kTimeout));
    if (reply && update.aborts_all) {  // a refused call ends no request
        const Result<messages::AbortReply> aborted = co_await control::abort_all(exchange);
        if (!aborted) co_return aborted.error();
    }
    co_return reply;
}

}  // namespace pitstop::http::weights
