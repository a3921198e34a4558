#include "tokenizer_proc/open_calls.h"

#include "base/check.h"

#include <set>

namespace pitstop::tokenizer {

// Describes how many requests are open, and on which replicas: "2 of 3 requests that have not
// ended, on replica 0, replica 2".
std::string LastChunks::who_is_missing() const {
    std::set<std::int32_t> replicas;
    for (const auto& [id, replica] : ending) replicas.insert(raw(replica));
    return fmt::format(
        "{} of {} requests that have not ended, on replica {}",
        ending.size(),
        reply.results.size(),
        fmt::join(replicas, ", replica ")
    );
}

Result<CallId> OpenCalls::open(Call call) {
    std::size_t& num_open = num_open_[call.awaited.index()];
    if (num_open >= kCallsMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} {} calls are open, the most allowed; wait for an answer",
            kCallsMax,
            call.what
        );
    }
    ++num_open;
    const CallId id = std::exchange(next_id_, next(next_id_));
    calls_.emplace(id, std::move(call));
    return id;
}

AdminCaller OpenCalls::close(CallId id) {
    auto call = calls_.extract(id);
    CHECK(!call.empty());
    --num_open_[call.mapped().awaited.index()];
    return std::move(call.mapped().caller);
}

std::vector<OpenCalls::Late> OpenCalls::take_late(TimePoint now) {
    std::vector<CallId> ids;
    for (const auto& [id, call] : calls_) {
        if (call.deadline <= now) ids.push_back(id);
    }
    std::vector<Late> late;
    for (const CallId id : ids) {
        const Call& call = calls_.at(id);
        Error error = make_error(
            ErrorCode::kDeadlineExceeded,
            "{}, phase {}: no answer in time from {}",
            call.what,
            call.phase,
            std::visit([](const auto& awaited) { return awaited.who_is_missing(); }, call.awaited)
        );
        const std::string_view what = call.what;
        std::string adapter = call.adapter;
        late.push_back({close(id), what, std::move(adapter), std::move(error)});
    }
    return late;
}

std::vector<AdminCaller> OpenCalls::take_all() {
    std::vector<AdminCaller> callers;
    while (!calls_.empty()) callers.push_back(close(calls_.begin()->first));
    return callers;
}

TimePoint OpenCalls::next_deadline() const {
    TimePoint first = TimePoint::max();
    for (const auto& [id, call] : calls_) first = std::min(first, call.deadline);
    return first;
}

}  // namespace pitstop::tokenizer
