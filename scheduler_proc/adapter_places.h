// Which versions of adapters are in the workers' memory, with --adapter-memory. The others are
// evicted: the workers have their bytes in files, and restore them when a request is to start.
//
// A request whose version is evicted waits, and others pass it. Room for the version is made by
// evicting those that are not in use, the least recently used first. A version is in use while a
// request has it that runs, or ran before and was retracted: that request never waits for it again.
// If all versions are in use, the one that came first leaves: no more requests start with it, and
// it is evicted when those that did have ended. So no version waits forever behind requests that
// keep coming. Pinned versions stay, while new requests get them.
//
// A version that some rank cannot write to its file is restored on the others: all ranks have it.
// For a while nothing is evicted then, requests that need room end with an error, and no adapter is
// loaded that would be one too many.
//
// Each worker carries out orders in their order, so memory that an eviction gives up may be used by
// the next restore.
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
    // A restore that takes longer fails; it reads a file of some MiB.
    static constexpr auto kRestoreMax = std::chrono::minutes(1);
    // How long nothing is evicted after an eviction that failed.
    static constexpr auto kRest = std::chrono::seconds(10);

    // `bytes_max`: of resident versions, on each rank; 0: no limit.
    AdapterPlaces(std::int64_t bytes_max, int tp) : bytes_max_(bytes_max), tp_(tp) {}

    [[nodiscard]] bool is_limited() const { return bytes_max_ > 0; }
    // The workers have this version in their memory, `bytes` on each rank.
    enum class Pinned { kNo, kYes };
    void add(messages::AdapterId id, std::int64_t bytes, Pinned pinned);
    // The workers are told to forget it.
    void remove(messages::AdapterId id) { all_.erase(id); }
    // No new request gets it: it may be evicted when it is not in use.
    void unpin(messages::AdapterId id) { all_.at(id).is_pinned = false; }

    // Returns whether a new request of the version may start now. If not, the version is wanted:
    // the next advance() restores it, or makes room for it. Ask in the order of the queue.
    [[nodiscard]] bool may_start(messages::AdapterId id);
    // A request of the version has started.
    void note_start(messages::AdapterId id) {
        if (is_limited()) all_.at(id).used_at = ++clock_;
    }

    // Records a rank's answer. Returns false if it was not ordered. If a version cannot be restored
    // on some rank, take_failed() has it.
    bool record(const messages::WorkerRestored& answer, TurnOutput& out);
    // Returns why no version may be added now, or nothing.
    [[nodiscard]] std::optional<Error> why_full() const;
    // Records that a rank could not evict the version. Returns false if it has this answer already.
    bool record(TimePoint now, const messages::WorkerNotEvicted& answer, TurnOutput& out);
    // Orders what the versions that are wanted need. Returns the versions that were evicted.
    std::vector<messages::AdapterId> advance(
        TimePoint now, std::set<messages::AdapterId> in_use, TurnOutput& out
    );
    // Versions whose waiting requests end with an error. With kDataLoss, the version is lost.
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
        kLeaving,  // resident, and none of its requests starts
        kEvicted,
        kComing,  // a restore is ordered
    };
    struct Place {
        std::int64_t bytes = 0;
        bool is_pinned = false;
        State state = State::kResident;
        std::uint64_t came_at = 0;  // these two are counts of the same clock
        std::uint64_t used_at = 0;
        TimePoint ordered_at{};          // kComing
        bool is_late = false;            // kComing: for longer than kRestoreMax
        std::set<Rank> silent{};         // kComing: ranks that have not answered
        std::optional<Error> why_not{};  // kComing: a rank's error
        TimePoint kept_until{};          // the rest after an eviction that failed
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
    void order_restore(Places::value_type& place, TurnOutput& out) const;
    [[nodiscard]] std::int64_t pinned_bytes() const;
    [[nodiscard]] Error no_room(const Place& place) const;

    std::int64_t bytes_max_;
    int tp_;
    TimePoint now_{};
    TimePoint rest_until_{};
    std::string why_not_evicted_{};  // the last one
    std::uint64_t clock_ = 0;
    Places all_{};
    // of the present turn
    std::vector<messages::AdapterId> wanted_{};
    std::set<messages::AdapterId> asked_{};  // may_start() allowed these: not evicted this turn
    std::set<messages::AdapterId> in_use_{};
    std::vector<messages::AdapterId> evicted_{};
    std::vector<Failure> failed_{};
};

}  // namespace pitstop::scheduler
