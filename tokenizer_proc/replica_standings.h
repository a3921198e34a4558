// The latest report of each replica about its pause, its memory and its weights.
//
// Thread:  the loop thread only.
// Bounded: one report per replica.
#pragma once

#include "messages/replica_standing.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pitstop::tokenizer {

class ReplicaStandings {
  public:
    explicit ReplicaStandings(int num_replicas)
        : standings_(static_cast<std::size_t>(num_replicas)) {}

    // A change that no caller asked for.
    enum class News { kNone, kPauseExpired };
    // REQUIRES: the replica exists.
    News record(messages::ReplicaStanding standing) {
        messages::ReplicaStanding& old =
            standings_[static_cast<std::size_t>(raw(standing.replica))];
        const bool is_expired = standing.pauses_expired != old.pauses_expired;
        old = std::move(standing);
        return is_expired ? News::kPauseExpired : News::kNone;
    }
    [[nodiscard]] bool has(ReplicaId replica) const {
        return raw(replica) >= 0 && raw(replica) < std::ssize(standings_);
    }

    [[nodiscard]] bool is_any_paused() const {
        return std::ranges::any_of(standings_, &messages::ReplicaStanding::is_paused);
    }
    [[nodiscard]] bool is_any_released() const {
        return std::ranges::any_of(standings_, [](const messages::ReplicaStanding& standing) {
            return !standing.released.empty();
        });
    }
    // Returns whether some replica generates nothing because a caller stopped it.
    [[nodiscard]] bool is_any_held() const { return is_any_paused() || is_any_released(); }
    // Returns whether exactly these tags are released, each on some replica. True for an empty
    // list, which stands for all tags.
    [[nodiscard]] bool are_just_released(const std::vector<messages::MemoryTag>& tags) const {
        if (tags.empty()) return true;
        const auto has = [](const std::vector<messages::MemoryTag>& list, messages::MemoryTag tag) {
            return std::ranges::find(list, tag) != list.end();
        };
        const auto is_released = [&](messages::MemoryTag tag) {
            return std::ranges::any_of(standings_, [&](const messages::ReplicaStanding& standing) {
                return has(standing.released, tag);
            });
        };
        return std::ranges::all_of(messages::kAllMemoryTags, [&](messages::MemoryTag tag) {
            return is_released(tag) == has(tags, tag);
        });
    }

  private:
    std::vector<messages::ReplicaStanding> standings_;
};

}  // namespace pitstop::tokenizer
