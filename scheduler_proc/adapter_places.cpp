#include "scheduler_proc/adapter_places.h"

#include "base/check.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace pitstop::scheduler {

void AdapterPlaces::add(messages::AdapterId id, std::int64_t bytes, Pinned pinned) {
    Place place{.bytes = bytes, .is_pinned = pinned == Pinned::kYes, .came_at = ++clock_};
    place.used_at = place.came_at;
    CHECK(all_.emplace(id, std::move(place)).second);
}

bool AdapterPlaces::may_start(messages::AdapterId id) {
    if (!is_limited()) return true;
    const bool may = all_.at(id).state == State::kResident;
    if (may) {
        asked_.insert(id);
    } else if (std::ranges::find(wanted_, id) == wanted_.end()) {
        wanted_.push_back(id);
    }
    return may;
}

// If one rank cannot restore a version, all other ranks evict it again, so that all ranks are
// alike.
bool AdapterPlaces::record(const messages::WorkerRestored& answer, TurnOutput& out) {
    const auto found = all_.find(answer.id);
    if (found == all_.end() || found->second.restore_order != answer.order ||
        found->second.silent.erase(answer.rank) == 0)
        return false;
    Place& place = found->second;
    if (!answer.verdict.is_done() && !place.why_not) place.why_not = answer.verdict.error();
    if (!place.silent.empty()) return true;
    place.is_late = false;
    if (const auto why_not = std::exchange(place.why_not, std::nullopt)) {
        order_eviction(*found, out);
        failed_.push_back({answer.id, *why_not});
        return true;
    }
    place.state = State::kResident;
    place.came_at = place.used_at = ++clock_;
    return true;
}

bool AdapterPlaces::record(
    TimePoint now, const messages::WorkerNotEvicted& answer, TurnOutput& out
) {
    now_ = now;
    const auto found = all_.find(answer.id);
    if (found == all_.end() || answer.order == 0 || found->second.evict_order != answer.order)
        return false;
    rest_until_ = now + kRest;
    why_not_evicted_ = answer.verdict.message;
    found->second.evict_order = 0;  // if several ranks fail to evict it, the first failure counts
    if (found->second.state == State::kEvicted) order_restore(*found, out);
    return true;
}

std::optional<Error> AdapterPlaces::why_full() const {
    if (!is_resting() || resident_bytes() <= bytes_max_) return std::nullopt;
    return none_leaves();
}

std::int64_t AdapterPlaces::resident_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [id, place] : all_) bytes += place.state == State::kEvicted ? 0 : place.bytes;
    return bytes;
}

std::int64_t AdapterPlaces::pinned_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [id, place] : all_) bytes += place.is_pinned ? place.bytes : 0;
    return bytes;
}

Error AdapterPlaces::no_room(const Place& place) const {
    return make_error(
        ErrorCode::kResourceExhausted,
        "the adapter was evicted, and its {} bytes have no room beside {} bytes of pinned "
        "adapters: "
        "a worker has {} bytes for adapters (--adapter-memory); unload a pinned one",
        place.bytes,
        pinned_bytes(),
        bytes_max_
    );
}

bool AdapterPlaces::is_idle(const Places::value_type& place) const {
    const auto& [id, entry] = place;
    return (entry.state == State::kResident || entry.state == State::kLeaving) &&
           !entry.is_pinned && !in_use_.contains(id) && !asked_.contains(id);
}

Error AdapterPlaces::none_leaves() const {
    return make_error(
        ErrorCode::kResourceExhausted,
        "no room for the adapter: a worker has {} bytes for adapters (--adapter-memory), and one "
        "that is to make room could not be evicted: {}",
        bytes_max_,
        why_not_evicted_
    );
}

void AdapterPlaces::order_eviction(Places::value_type& place, TurnOutput& out) {
    place.second.state = State::kEvicted;
    place.second.evict_order = ++last_order_;
    out.workers.emplace_back(messages::WorkerAdapters{.order = last_order_, .evict = {place.first}}
    );
}

void AdapterPlaces::order_restore(Places::value_type& place, TurnOutput& out) {
    place.second.state = State::kComing;
    place.second.restore_order = ++last_order_;
    place.second.ordered_at = now_;
    for (int rank = 0; rank < tp_; ++rank) place.second.silent.insert(Rank{rank});
    out.workers.emplace_back(messages::WorkerAdapters{
        .order = last_order_, .restore = {place.first}});
}

void AdapterPlaces::evict(Places::value_type& place, TurnOutput& out) {
    order_eviction(place, out);
    evicted_.push_back(place.first);
}

bool AdapterPlaces::make_room(std::int64_t bytes, TurnOutput& out) {
    while (resident_bytes() + bytes > bytes_max_) {
        if (is_resting()) return false;
        Places::value_type* oldest = nullptr;
        for (Places::value_type& place : all_) {
            if (!is_idle(place)) continue;
            if (oldest == nullptr || place.second.used_at < oldest->second.used_at) oldest = &place;
        }
        if (oldest == nullptr) return false;
        evict(*oldest, out);
    }
    return true;
}

// Marks versions in use as leaving, earliest first, until the staying ones leave room for `bytes`.
void AdapterPlaces::let_leave(std::int64_t bytes) {
    std::int64_t staying = 0;
    for (const auto& [id, place] : all_) {
        const bool stays = place.state == State::kResident || place.state == State::kComing;
        staying += stays ? place.bytes : 0;
    }
    while (staying + bytes > bytes_max_) {
        Place* first = nullptr;
        for (auto& [id, place] : all_) {
            if (place.state != State::kResident || place.is_pinned || !in_use_.contains(id))
                continue;
            if (first == nullptr || place.came_at < first->came_at) first = &place;
        }
        if (first == nullptr) return;  // all other versions are pinned or leaving
        first->state = State::kLeaving;
        staying -= first->bytes;
    }
}

void AdapterPlaces::look_at_late(TimePoint now) {
    for (auto& [id, place] : all_) {
        if (place.state != State::kComing || now < place.ordered_at + kRestoreMax) continue;
        const bool is_new = !std::exchange(place.is_late, true);
        if (!is_new && std::ranges::find(wanted_, id) == wanted_.end()) continue;
        failed_.push_back(
            {id,
             make_error(
                 ErrorCode::kDeadlineExceeded,
                 "the adapter was evicted, and rank {} has not restored it in {} s",
                 raw(*place.silent.begin()),
                 std::chrono::seconds(kRestoreMax).count()
             )}
        );
    }
}

std::vector<messages::AdapterId> AdapterPlaces::advance(
    TimePoint now, std::set<messages::AdapterId> in_use, TurnOutput& out
) {
    now_ = now;
    in_use_ = std::move(in_use);
    look_at_late(now);
    for (Places::value_type& place : all_) {
        if (place.second.state == State::kLeaving && is_idle(place) && !is_resting())
            evict(place, out);
    }
    std::ignore = make_room(0, out);  // a commit may have added more than there is room for
    for (const messages::AdapterId id : wanted_) {
        const auto found = all_.find(id);
        if (found == all_.end() || found->second.state != State::kEvicted) continue;
        Place& place = found->second;
        if (pinned_bytes() + (place.is_pinned ? 0 : place.bytes) > bytes_max_) {
            failed_.push_back({id, no_room(place)});
            continue;
        }
        if (!make_room(place.bytes, out)) {
            if (is_resting()) {
                failed_.push_back({id, none_leaves()});
                continue;
            }
            let_leave(place.bytes);
            break;  // the versions behind this one would take its room
        }
        order_restore(*found, out);
    }
    wanted_.clear();
    asked_.clear();
    return std::exchange(evicted_, {});
}

std::optional<TimePoint> AdapterPlaces::next_deadline() const {
    std::optional<TimePoint> first;
    if (is_resting()) first = rest_until_;
    for (const auto& [id, place] : all_) {
        if (place.state == State::kComing && !place.is_late)
            first = earlier(first, place.ordered_at + kRestoreMax);
    }
    return first;
}

}  // namespace pitstop::scheduler
