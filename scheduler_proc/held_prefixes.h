// Pages that conversations hold between their turns (--session-memory). A conversation holds the
// prefix of its last turn, as far as the prefix cache has it. With recurrent state it also holds
// its last checkpoint, from which the next turn continues. Held pages are evicted after all others,
// the least recently used first. An update ends the hold of a prefix if the KV becomes older than
// the conversation's last turn tolerates. The hold also ends if new requests no longer get the
// adapter version of the KV.
//
// Bounded: pages_max pages and states_max checkpoints in all. Beyond that, the oldest conversation
//          loses its hold.
// Thread:  the loop thread only.
#pragma once

#include "base/ids.h"
#include "messages/conversations.h"
#include "scheduler_proc/conversations.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/prefix_cache.h"

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// The conversation of a turn that ended, and what its next turn is expected to tolerate.
struct PrefixHolder {
    messages::ConversationId conversation{};
    std::optional<std::int64_t> lag_max{};    // how many epochs old its KV may be; absent: any
    std::optional<Conversations::Ran> ran{};  // absent: the turn never ran
};

class HeldPrefixes {
  public:
    explicit HeldPrefixes(std::int64_t pages_max = 0, std::int64_t states_max = 0)
        : pages_max_(pages_max), states_max_(states_max) {}

    // Holds `path` for the conversation, in place of its previous prefix. Of a path longer than
    // pages_max, holds the first pages. Holds nothing if the conversation does not tolerate a page
    // of the path, because all earlier pages are as old or older.
    void hold(const PrefixHolder& holder, std::span<const PageId> path, PrefixCache& cache);
    // The weights of `serving` serve from now on. Ends the hold of each prefix with a page that its
    // holder does not tolerate.
    void begin_epoch(Epoch serving, PrefixCache& cache);
    void end(messages::ConversationId conversation, PrefixCache& cache);
    // New requests get these versions of adapters: pages of no other one are held.
    void serve_adapters(const std::set<messages::AdapterId>& serving, PrefixCache& cache);
    // Ends all holds, because the cache is about to be cleared.
    void clear(PrefixCache& cache);

    // The serving epoch (absent: that of the last begin_epoch()) and the serving adapter versions.
    struct Serving {
        std::optional<Epoch> epoch{};
        std::set<messages::AdapterId> adapters{};
    };
    // Returns what is wrong, or nothing: a held page that its conversation does not tolerate while
    // `serving` serves, or a number of holds that differs from the cache's. For tests and the
    // simulator.
    [[nodiscard]] std::optional<std::string> audit(const Serving& serving, const PrefixCache& cache)
        const;

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
    [[nodiscard]] bool is_served(const Prefix& prefix, const PrefixCache& cache) const;
    void hold_state(Prefix& prefix, std::span<const PageId> path, PrefixCache& cache);
    void drop_state(Prefix& prefix, PrefixCache& cache);

    std::int64_t pages_max_;
    std::int64_t states_max_;
    std::int64_t num_pages_ = 0;      // in order_, evicted ones included
    std::optional<Epoch> serving_{};  // absent: no update yet, and all KV is of one version
    std::set<messages::AdapterId> adapters_{};
    Order order_{};
    States states_{};
    std::map<messages::ConversationId, Order::iterator> places_{};
};

}  // namespace pitstop::scheduler
