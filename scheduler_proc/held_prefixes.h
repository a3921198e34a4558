// The pages of conversations between their turns: of each conversation the prefix of its last turn,
// as far as the prefix cache has it; and with recurrent state its last checkpoint, from which the
// next turn continues. They are evicted after all others, the least recently used first, so that a
// turn finds its history again (--session-memory). An update ends the hold of pages that the
// conversation does not tolerate any more: its last turn says which.
//
// Bounded: pages_max pages and states_max checkpoints in all. Beyond that, the oldest
// conversation's are like any others.
// Thread:  the loop thread only.
#pragma once

#include "base/ids.h"
#include "messages/conversations.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/prefix_cache.h"

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// The conversation of a turn that ended, and what its next turn is expected to tolerate.
struct PrefixHolder {
    messages::ConversationId conversation{};
    std::optional<std::int64_t> lag_max{};  // epochs that KV may be older; absent: any
};

class HeldPrefixes {
  public:
    explicit HeldPrefixes(std::int64_t pages_max = 0, std::int64_t states_max = 0)
        : pages_max_(pages_max), states_max_(states_max) {}

    // Holds the path for the conversation, in place of what it held before. If the path alone is
    // over the bound, its first pages; nothing if the conversation does not tolerate a page of it,
    // because then it tolerates none before that page either.
    void hold(const PrefixHolder& holder, std::span<const PageId> path, PrefixCache& cache);
    // The weights of `serving` serve from now on. What its holder does not tolerate is not held any
    // more.
    void begin_epoch(Epoch serving, PrefixCache& cache);
    void end(messages::ConversationId conversation, PrefixCache& cache);
    // The cache is about to be cleared: nothing is held any more.
    void clear(PrefixCache& cache);

    [[nodiscard]] std::int64_t num_pages() const { return num_pages_; }

    // Returns which held page its conversation does not tolerate while `serving` serves, or
    // nothing. Absent: what began last. For tests and the simulator.
    [[nodiscard]] std::optional<std::string> audit(
        std::optional<Epoch> serving, const PrefixCache& cache
    ) const;

  private:
    struct State {
        messages::ConversationId conversation{};
        PrefixCache::Held node{};
    };
    using States = std::list<State>;  // the oldest first
    struct Prefix {
        PrefixHolder holder{};
        std::vector<PrefixCache::Held> nodes{};
        std::optional<States::iterator> state{};
    };
    using Order = std::list<Prefix>;  // the oldest first
    void drop(Order::iterator one, PrefixCache& cache);
    void hold_state(Prefix& prefix, std::span<const PageId> path, PrefixCache& cache);
    void drop_state(Prefix& prefix, PrefixCache& cache);

    std::int64_t pages_max_;
    std::int64_t states_max_;
    std::int64_t num_pages_ = 0;
    std::optional<Epoch> serving_{};  // absent: no update yet, and all KV is of one version
    Order order_{};
    States states_{};
    std::map<messages::ConversationId, Order::iterator> places_{};
};

}  // namespace pitstop::scheduler
