#include "tp_worker/sources/ipc_source.h"

#include "base/utf8.h"
#include "tp_worker/sources/checkpoint_engine.h"
#include "tp_worker/sources/push_session.h"
#include "tp_worker/sources/reply_socket.h"

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

// Connects to the socket of the sender for this rank's device.
Result<ReplySocket> connect(const SourceArgs& args) {
    const auto& handles = args.source.handles;
    const auto found = handles.find(args.worker.device_uuid);
    if (found != handles.end()) return ReplySocket::connect(found->second);
    std::string names;
    for (const auto& [device, endpoint] : handles) {
        constexpr std::size_t kShown = 256;
        if (names.size() < kShown) names += (names.empty() ? "" : ", ") + device;
    }
    return make_error(
        ErrorCode::kNotFound,
        "Device UUID {} not found in zmq_handles: [{}]",
        args.worker.device_uuid,
        names
    );
}

// Connects even for a stage that cannot begin: the sender would otherwise wait forever
// for a receiver.
Result<> decline(const SourceArgs& args, ReplySocket& socket, const Error& why) {
    const TimePoint until = Clock::now() + kFarewellMax;
    const auto first = socket.receive(until, args.is_over());
    if (!first) return why;
    if (first->size() == 1)
        return CheckpointEngine(args, socket).refuse(first->front(), why, until);
    PushSession(args, socket).refuse(why);
    return why;
}

}  // namespace

Result<> deliver_ipc(const SourceArgs& args) {
    ASSIGN_OR_RETURN(ReplySocket socket, connect(args));
    const Result<std::vector<std::string>> first =
        socket.receive(args.stall_deadline(), args.stage.args().is_dropped);
    if (!first) {
        const bool is_dropped = first.error().code == ErrorCode::kAborted;
        return is_dropped ? decline(args, socket, first.error()) : first.error();
    }
    if (first->size() == 1) return CheckpointEngine(args, socket).run(first->front());
    return PushSession(args, socket).run(*first);
}

Result<> decline_ipc(const SourceArgs& args, const Error& why) {
    Result<ReplySocket> socket = connect(args);
    if (!socket) return why;
    return decline(args, *socket, why);
}

std::string text_of(const WeightStage& stage, const Error& error) {
    constexpr std::size_t kTextMax = 16 << 10;
    std::string text;
    for (const std::string& problem : stage.outcome(error).problems)
        text += (text.empty() ? "" : "; ") + problem;
    if (text.empty()) text = name_of(error.code);
    return std::string(utf8_prefix(text, kTextMax));
}

Result<> check_places(std::vector<Placed> places, std::int64_t buffer_bytes) {
    for (const Placed& place : places) {
        if (place.begin >= 0 && place.end >= place.begin && place.end <= buffer_bytes) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' is bytes [{}, {}) of a buffer of {}",
            place.name,
            place.begin,
            place.end,
            buffer_bytes
        );
    }
    std::erase_if(places, [](const Placed& place) { return place.begin == place.end; });
    std::ranges::sort(places, {}, &Placed::begin);
    for (std::size_t i = 1; i < places.size(); ++i) {
        if (places[i].begin >= places[i - 1].end) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' and '{}' overlap in the buffer",
            places[i - 1].name,
            places[i].name
        );
    }
    return Ok{};
}

}  // namespace pitstop::tp_worker
