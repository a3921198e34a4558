// The pages of conversations between their turns: of each conversation the prefix of its last turn,
// as far as the prefix cache has it; and with recurrent state its last checkpoint, from which the
// next turn continues. They are evicted after all others, the least recently used first, so that a
// turn finds its history again (--session-memory).
//
// Bounded: pages_max pages and states_max checkpoints in all. Beyond that, the oldest
// conversation's are like any others.
// Thread:  the loop thread only.
#pragma once

#include "base/ids.h"
#include "messages/conversations.h"
#include "scheduler_proc/prefix_cache.h"

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace pitstop::scheduler {

class HeldPrefixes {
  public:
    explicit HeldPrefixes(std::int64_t pages_max = 0, std::int64_t states_max = 0)
        : pages_max_(pages_max), states_max_(states_max) {}

    // Holds the path for the conversation, in place of what it held before. If the path alone is
    // over the bound, its first pages.
    void hold(
        messages::ConversationId conversation, std::span<const PageId> path, PrefixCache& cache
    );
    void end(messages::ConversationId conversation, PrefixCache& cache);
    // The cache is about to be cleared: nothing is held any more.
    void clear(PrefixCache& cache);

    [[nodiscard]] std::int64_t num_pages() const { return num_pages_; }

  private:
    struct State {
        messages::ConversationId conversation{};
        PrefixCache::Held node{};
    };
    using States = std::list<State>;  // the oldest first
    struct Prefix {
        messages::ConversationId conversation{};
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
    Order order_{};
    States states_{};
    std::map<messages::ConversationId, Order::iterator> places_{};
};

}  // namespace pitstop::scheduler
