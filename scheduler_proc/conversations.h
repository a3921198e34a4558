// Decides which conversations may start a turn now. Otherwise, a pool that is too small for all
// conversations would compute their histories again and again.
//
// If more conversations run than fit, each turn evicts the pages of the conversation whose turn
// comes next. So turns are admitted by conversation, the oldest first. Each conversation is
// expected to grow to twice its present length, but not over half of the pool. A conversation's
// turns wait if it and all older conversations are expected to need more than the pool. They also
// wait while an older conversation waits: when the older one continues, it would evict the pages of
// the younger one. A short conversation does not wait for this second reason.
//
// The factor of two: suppose that n conversations start together in a pool for n / 2, and run until
// the pool is full. Those that must then wait have a quarter of all tokens, which are computed
// again.
//
// A conversation counts while a turn of it is open. Between turns it counts while its client is
// expected to return (kPatienceMin to kPatienceMax). Tokens that its first turn found in the cache
// do not count, because others have them too. The first turn itself counts nothing.
//
// A conversation that no longer counts is overdue: its client may be gone. Its pages are evicted
// before those of conversations that wait.
//
// No turn starves: every turn starts after kWaitMax at the latest, and the oldest conversation
// never waits. Requests without a conversation are not affected.
//
// Thread:  the loop thread only.
// Bounded: kConversationsMax conversations; beyond that, the longest idle one is forgotten.
#pragma once

#include "base/time.h"
#include "messages/conversations.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

class Conversations {
  public:
    static constexpr std::size_t kConversationsMax = 8192;
    static constexpr std::int64_t kGrowth = 2;       // of a conversation's length
    static constexpr std::int64_t kShortShare = 64;  // short: at most 1 / kShortShare of the pool
    // A client is expected back within twice its longest pause between two turns, and after its
    // first turn within kPatience.
    static constexpr Duration kPatience = std::chrono::seconds(5);
    static constexpr Duration kPatienceMin = std::chrono::seconds(1);
    static constexpr Duration kPatienceMax = std::chrono::seconds(10);
    static constexpr Duration kWaitMax = std::chrono::seconds(60);

    using Id = messages::ConversationId;

    // A turn arrived in this round.
    void begin_turn(Id id);
    // The tokens of a turn that has run.
    struct Ran {
        std::int64_t num_tokens = 0;  // at its end
        std::int64_t num_cached = 0;  // of its prompt, found in the cache when the turn started
    };
    // A turn ended in this round. `ran`: absent if the turn never started.
    void end_turn(Id id, const std::optional<Ran>& ran);
    void end(Id id);

    // The scheduler's loop begins to work at `now`, with a pool of this many tokens: may_start()
    // decides anew for this round.
    void begin_round(std::int64_t pool_tokens, TimePoint now);
    // Returns whether a turn that arrived at `arrived_at` may start in this round.
    [[nodiscard]] bool may_start(Id id, TimePoint arrived_at);
    // Returns, once, the conversations whose clients are overdue while others need the pool: their
    // pages are not worth holding. Known after may_start().
    [[nodiscard]] std::vector<Id> take_overdue() { return std::exchange(overdue_, {}); }
    // Returns when a turn that this round refused may start even if no other turn ends; nothing if
    // the round refused none.
    [[nodiscard]] std::optional<TimePoint> next_deadline() const { return deadline_; }

    [[nodiscard]] std::size_t size() const { return known_.size(); }

  private:
    struct Known {
        Id id{};
        std::int64_t num_open = 0;  // turns
        std::int64_t num_own = 0;   // tokens of its latest turn, without num_shared
        // prompt tokens that its first turn found in the cache; absent: no turn has run
        std::optional<std::int64_t> num_shared{};
        TimePoint idle_since{};
        std::optional<Duration> longest_pause{};  // absent: it had one turn
        bool must_wait = false;                   // in this round
        bool is_overdue = false;                  // take_overdue() returns it, or has returned it

        // Returns until when its client is expected to send the next turn.
        [[nodiscard]] TimePoint expected_until() const;
    };
    using ByAge = std::map<std::uint64_t, Known>;  // the oldest first

    [[nodiscard]] Known* find(Id id);
    void forget_idlest();
    void choose();

    ByAge known_{};
    std::map<Id, std::uint64_t> ages_{};
    std::uint64_t last_age_ = 0;
    // The round.
    TimePoint now_{};
    std::int64_t pool_tokens_ = 0;
    bool is_chosen_ = false;                   // must_wait is known
    std::optional<TimePoint> first_change_{};  // when the next conversation stops counting
    std::optional<TimePoint> deadline_{};
    std::vector<Id> overdue_{};
};

}  // namespace pitstop::scheduler
