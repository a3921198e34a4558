// Chooses which replica a request goes to: the least loaded, unless another has served its
// beginning before and is not much busier.
//
// Load is counted in tokens of open requests (prompt and expected output). Beginnings are known by
// hashes of their first 1, 2, 4, ... pages, in a table of fixed size where a new entry overwrites
// an old one: forgetting costs a recomputed prefix, nothing else.
//
// Thread:  the loop thread only.
// Bounded: allocates nothing after construction.
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tokenizer {

class ReplicaChoice {
  public:
    // A replica with a known prefix may be so many tokens ahead of the least loaded one: about what
    // prefilling a long shared prompt again would cost.
    static constexpr std::int64_t kAffinitySlackTokens = 8192;
    // A request without max_new_tokens is expected to write so many tokens; one with it, as many at
    // most.
    static constexpr std::int64_t kExpectedOutputMax = 1024;

    ReplicaChoice(int num_replicas, std::int64_t page_size);

    // Changes nothing.
    [[nodiscard]] ReplicaId choose(std::span<const TokenId> prompt) const;

    // A request went there, and with it its prompt's pages.
    void add(ReplicaId replica, std::span<const TokenId> prompt, std::int64_t load);
    // It has ended there.
    void remove(ReplicaId replica, std::int64_t load);

    [[nodiscard]] std::int64_t load(ReplicaId replica) const {
        return load_[static_cast<std::size_t>(raw(replica))];
    }

  private:
    struct Entry {
        std::uint64_t hash = 0;
        ReplicaId replica{-1};
    };
    template <class Visit>
    void for_each_prefix(std::span<const TokenId> prompt, Visit visit) const;

    std::int64_t page_size_;
    std::vector<std::int64_t> load_;  // [replicas], tokens
    std::vector<Entry> known_;        // empty with one replica
};

}  // namespace pitstop::tokenizer
