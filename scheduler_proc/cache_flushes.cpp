#include "scheduler_proc/cache_flushes.h"

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {

bool CacheFlushes::begin(
    const messages::FlushCache& call,
    TimePoint now,
    const std::optional<Error>& in_use,
    TurnOutput& out
) {
    messages::FlushPart part{.call = call.call, .replica = replica_};
    if (calls_.size() >= kPendingCallsMax) {
        part.verdict = make_error(
            ErrorCode::kResourceExhausted,
            "{} flushes are waiting, the most allowed; wait for an answer",
            calls_.size()
        );
    } else if (!call.wait_idle && in_use) {
        part.verdict = *in_use;
    } else {
        calls_.push_back({deadline_of(now, call.timeout_ms), call.wait_idle, std::move(part)});
        return true;
    }
    out.tokenizer.emplace_back(std::move(part));
    return false;
}

bool CacheFlushes::holds_plans() const {
    return std::ranges::any_of(calls_, [](const Call& call) { return !call.waits_idle; });
}

void CacheFlushes::advance(std::int64_t pages_freed, TurnOutput& out) {
    for (Call& call : calls_) {
        // only the first call reports the pages
        call.part.pages_freed = std::exchange(pages_freed, 0);
        out.tokenizer.emplace_back(std::move(call.part));
    }
    calls_.clear();
}

void CacheFlushes::end_late_calls(TimePoint now, const std::string& what, TurnOutput& out) {
    std::erase_if(calls_, [&](Call& call) {
        if (now < call.deadline) return false;
        call.part.verdict = make_error(ErrorCode::kDeadlineExceeded, "phase flush: {}", what);
        out.tokenizer.emplace_back(std::move(call.part));
        return true;
    });
}

std::optional<TimePoint> CacheFlushes::next_deadline() const {
    std::optional<TimePoint> first;
    for (const Call& call : calls_) first = earlier(first, call.deadline);
    return first;
}

}  // namespace pitstop::scheduler
