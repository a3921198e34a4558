// The versions of adapters that are in the workers' memory, with --adapter-memory. All other
// versions are evicted: the workers keep their bytes in files, and restore them for a request.
//
// A request whose version is evicted waits, and requests for other versions overtake it. To make
// room, versions that are not in use are evicted, the least recently used first. A version is in
// use while one of its requests runs, or ran before and was retracted. Such a request never waits
// for its version again. If all versions are in use, the earliest one leaves: no more requests
// start with it. It is evicted when its running requests have ended. So steady traffic for some
// versions cannot block the others forever. Pinned versions stay while new requests get them.
//
// If one rank cannot write an evicted version to its file, all other ranks restore the version. For
// kRest after that failure nothing is evicted: requests that need room end with an error, and no
// adapter is loaded that exceeds the limit.
//
// Each worker executes its orders in sequence, so a restore may use the memory that the eviction
// ordered before it frees.
//
// Thread:  the loop thread only.
// Bounded: an entry per version that the workers have.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/adapter_moves.h"
#include "messages/adapters.h"
#include "scheduler_proc/turn.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

class AdapterPlaces {
  public:
    // The limit of a restore's duration; a version's file has some MiB.
    static constexpr auto kRestoreMax = std::chrono::minutes(1);
    // After a failed eviction, nothing is evicted for this long.
    static constexpr auto kRest = std::chrono::seconds(10);

    // `bytes_max`: the limit of the resident versions' bytes on each rank; 0: no limit.
    AdapterPlaces(std::int64_t bytes_max, int tp) : bytes_max_(bytes_max), tp_(tp) {}

    [[nodiscard]] bool is_limited() const { return bytes_max_ > 0; }
    // The workers have this version in their memory, `bytes` on each rank.
    enum class Pinned { kNo, kYes };
    void add(messages::AdapterId id, std::int64_t bytes, Pinned pinned);
    // The workers are told to forget the version.
    void remove(messages::AdapterId id) { all_.erase(id); }
    // No new request gets the version: it may be evicted when it is not in use.
    void unpin(messages::AdapterId id) { all_.at(id).is_pinned = false; }

    // Returns whether a new request of the version may start now. If not, the version is wanted:
    // the next advance() restores it, or makes room for it. Ask in the order of the queue.
    [[nodiscard]] bool may_start(messages::AdapterId id);
    // A request of the version has started.
    void note_start(messages::AdapterId id) {
        if (is_limited()) all_.at(id).used_at = ++clock_;
    }

    // Records a rank's answer to a restore. Returns false if no restore of the version was ordered.
    // take_failed() returns the versions that some rank could not restore.
    bool record(const messages::WorkerRestored& answer, TurnOutput& out);
    // Returns why no version may be added now, or nothing.
    [[nodiscard]] std::optional<Error> why_full() const;
    // Records that a rank could not evict a version. Returns false if the order is not the
    // version's latest eviction, or a rank has failed to carry it out before.
    bool record(TimePoint now, const messages::WorkerNotEvicted& answer, TurnOutput& out);
    // Orders restores and evictions for the wanted versions. Returns the versions it evicted.
    std::vector<messages::AdapterId> advance(
        TimePoint now, std::set<messages::AdapterId> in_use, TurnOutput& out
    );
    // A version whose waiting requests end with an error. With kDataLoss, the version is lost.
    struct Failure {
        messages::AdapterId id{};
        Error why{};
    };
    [[nodiscard]] std::vector<Failure> take_failed() { return std::exchange(failed_, {}); }

    [[nodiscard]] bool is_resident(messages::AdapterId id) const {
        return all_.at(id).state != State::kEvicted && all_.at(id).state != State::kComing;
    }
    [[nodiscard]] std::int64_t resident_bytes() const;  // on each rank, restores included
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  private:
    enum class State {
        kResident,
        kLeaving,  // resident, but no new request starts with it
        kEvicted,
        kComing,  // a restore is ordered
    };
    struct Place {
        std::int64_t bytes = 0;
        bool is_pinned = false;
        State state = State::kResident;
        std::uint64_t came_at = 0;  // came_at and used_at are counts of clock_
        std::uint64_t used_at = 0;
        TimePoint ordered_at{};           // kComing
        bool is_late = false;             // kComing: the restore has taken longer than kRestoreMax
        std::uint64_t evict_order = 0;    // the latest eviction; 0: none, or a rank failed to do it
        std::uint64_t restore_order = 0;  // the latest restore; 0: none
        std::set<Rank> silent{};          // kComing: ranks that have not answered
        std::optional<Error> why_not{};   // kComing: a rank's error
    };
    using Places = std::map<messages::AdapterId, Place>;
    void evict(Places::value_type& place, TurnOutput& out);
    // Returns whether there is room for `bytes`, after evictions.
    bool make_room(std::int64_t bytes, TurnOutput& out);
    void let_leave(std::int64_t bytes);
    void look_at_late(TimePoint now);
    [[nodiscard]] bool is_resting() const { return now_ < rest_until_; }
    [[nodiscard]] bool is_idle(const Places::value_type& place) const;
    [[nodiscard]] Error none_leaves() const;
    void order_eviction(Places::value_type& place, TurnOutput& out);
    void order_restore(Places::value_type& place, TurnOutput& out);
    [[nodiscard]] std::int64_t pinned_bytes() const;
    [[nodiscard]] Error no_room(const Place& place) const;

    std::int64_t bytes_max_;
    int tp_;
    TimePoint now_{};
    TimePoint rest_until_{};
    std::string why_not_evicted_{};  // the latest error
    std::uint64_t clock_ = 0;
    std::uint64_t last_order_ = 0;
    Places all_{};
    // wanted_ to failed_ belong to the current turn
    std::vector<messages::AdapterId> wanted_{};
    std::set<messages::AdapterId> asked_{};  // may_start() returned true: not evicted this turn
    std::set<messages::AdapterId> in_use_{};
    std::vector<messages::AdapterId> evicted_{};
    std::vector<Failure> failed_{};
};

}  // namespace pitstop::scheduler
