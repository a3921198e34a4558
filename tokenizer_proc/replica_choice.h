// Chooses the replica of a request: the least loaded, unless another has served the same beginning
// before and is not much busier.
//
// Load is counted in tokens of open requests (prompt and expected output). Beginnings are known by
// hashes of their first 1, 2, 4, ... pages, in a table of fixed size where a new entry overwrites
// an old one: forgetting only costs computing a prefix again.
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
    // A replica with a known prefix may have this many tokens more than the least loaded one: about
    // the cost of prefilling a long shared prompt again.
    static constexpr std::int64_t kAffinitySlackTokens = 8192;
    // The output tokens that are expected of a request: this many without max_new_tokens, at most
    // this many with it.
    static constexpr std::int64_t kExpectedOutputMax = 1024;

    ReplicaChoice(int num_replicas, std::int64_t page_size);

    // Returns a choice without recording it.
    [[nodiscard]] ReplicaId choose(std::span<const TokenId> prompt) const;

    // Records that a request, and so its prompt's pages, went to the replica.
    void add(ReplicaId replica, std::span<const TokenId> prompt, std::int64_t load);
    // Records that a request has ended.
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
