#include "scheduler_proc/conversations.h"

#include <algorithm>

namespace pitstop::scheduler {

TimePoint Conversations::Known::expected_until() const {
    if (!longest_pause) return idle_since + kPatience;
    return idle_since + std::clamp<Duration>(2 * *longest_pause, kPatienceMin, kPatienceMax);
}

Conversations::Known* Conversations::find(Id id) {
    const auto age = ages_.find(id);
    return age == ages_.end() ? nullptr : &known_.at(age->second);
}

void Conversations::begin_turn(Id id) {
    Known* one = find(id);
    if (one == nullptr) {
        ages_[id] = ++last_age_;
        one = &known_[last_age_];
        one->id = id;
    } else if (one->num_open == 0) {
        const Duration pause = now_ - one->idle_since;
        one->longest_pause = std::max(one->longest_pause.value_or(pause), pause);
    }
    one->is_overdue = false;
    ++one->num_open;
    if (known_.size() > kConversationsMax) forget_idlest();
}

void Conversations::end_turn(Id id, const std::optional<Ran>& ran) {
    Known* const one = find(id);
    if (one == nullptr || one->num_open == 0) return;  // the conversation has ended
    --one->num_open;
    one->idle_since = now_;
    if (!ran) return;
    // The first turn may be several requests (n > 1). The later ones find pages of the earlier ones
    // in the cache, but these pages are the conversation's own.
    const bool is_first = !one->longest_pause;
    if (!one->num_shared || is_first)
        one->num_shared = std::min(one->num_shared.value_or(ran->num_cached), ran->num_cached);
    one->num_own = std::max<std::int64_t>(ran->num_tokens - *one->num_shared, 0);
}

void Conversations::end(Id id) {
    const auto age = ages_.find(id);
    if (age == ages_.end()) return;
    known_.erase(age->second);
    ages_.erase(age);
}

// Open turns are requests, which are bounded, so only idle ones are forgotten.
void Conversations::forget_idlest() {
    const Known* idlest = nullptr;
    for (const auto& [age, one] : known_) {
        if (one.num_open > 0) continue;
        if (idlest == nullptr || one.idle_since < idlest->idle_since) idlest = &one;
    }
    if (idlest != nullptr) end(idlest->id);
}

void Conversations::begin_round(std::int64_t pool_tokens, TimePoint now) {
    pool_tokens_ = pool_tokens;
    now_ = now;
    is_chosen_ = false;
    deadline_.reset();
}

void Conversations::choose() {
    is_chosen_ = true;
    first_change_.reset();
    std::int64_t num_expected = 0;
    std::int64_t num_idle = 0;  // tokens of conversations that wait or are overdue
    bool is_oldest = true;
    bool has_waiting = false;
    for (auto& [age, one] : known_) {
        one.must_wait = false;
        if (one.num_open == 0) {
            const TimePoint until = one.expected_until();
            if (until <= now_) {
                if (!one.is_overdue) num_idle += one.num_own;  // an overdue one holds nothing
                continue;
            }
            first_change_ = std::min(first_change_.value_or(until), until);
        }
        const std::int64_t grown =
            std::max(one.num_own, std::min(kGrowth * one.num_own, pool_tokens_ / 2));
        const bool is_short = one.num_own <= pool_tokens_ / kShortShare;
        const bool fits = num_expected + grown <= pool_tokens_ && (!has_waiting || is_short);
        one.must_wait = !is_oldest && !fits;
        has_waiting |= one.must_wait;
        if (one.must_wait) {
            num_idle += one.num_own;
        } else {
            num_expected += grown;
        }
        is_oldest = false;
    }
    if (num_expected + num_idle <= pool_tokens_) return;
    for (auto& [age, one] : known_) {
        if (one.num_open > 0 || one.is_overdue || now_ < one.expected_until()) continue;
        one.is_overdue = true;
        overdue_.push_back(one.id);
    }
}

bool Conversations::may_start(Id id, TimePoint arrived_at) {
    if (!is_chosen_) choose();
    const Known* const one = find(id);
    const TimePoint at_the_latest = arrived_at + kWaitMax;
    if (one == nullptr || !one->must_wait || at_the_latest <= now_) return true;
    deadline_ = std::min(deadline_.value_or(at_the_latest), at_the_latest);
    if (first_change_) deadline_ = std::min(*deadline_, *first_change_);
    return false;
}

}  // namespace pitstop::scheduler
