#include "tokenizer_proc/held_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::tokenizer {

Result<> HeldCalls::add(HeldCall call) {
    if (calls_.size() >= kCallsMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} calls wait for an update already; accepted are {}",
            calls_.size(),
            kCallsMax
        );
    }
    std::size_t bytes = call.bytes;
    for (const HeldCall& other : calls_) bytes += other.bytes;
    if (!calls_.empty() && bytes > kBytesMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} calls with {} bytes wait for an update already; accepted are {} bytes: wait for "
            "answers",
            calls_.size(),
            bytes - call.bytes,
            kBytesMax
        );
    }
    calls_.push_back(std::move(call));
    return Ok{};
}

bool HeldCalls::is_any_with_weights() const {
    return std::ranges::any_of(calls_, &HeldCall::brings_weights);
}

HeldCall HeldCalls::take_first() {
    HeldCall call = std::move(calls_.front());
    calls_.pop_front();
    return call;
}

std::vector<HeldCall> HeldCalls::take_late(TimePoint now) {
    std::vector<HeldCall> late;
    std::erase_if(calls_, [&](HeldCall& call) {
        if (!call.is_late(now)) return false;
        late.push_back(std::move(call));
        return true;
    });
    return late;
}

std::vector<HeldCall> HeldCalls::take_all() {
    std::vector<HeldCall> all(std::move_iterator(calls_.begin()), std::move_iterator(calls_.end()));
    calls_.clear();
    return all;
}

TimePoint HeldCalls::next_deadline() const {
    TimePoint first = TimePoint::max();
    for (const HeldCall& call : calls_) first = std::min(first, call.waits_until());
    return first;
}

}  // namespace pitstop::tokenizer
