// Chooses the replica of a request: the least loaded one, or another that has served a prompt with
// the same beginning and is not much busier.
//
// A replica's load is the number of tokens of its open requests: prompts and expected output.
// Beginnings are recognized by hashes of their first 1, 2, 4, ... pages, in a table of fixed size.
// A new entry overwrites an old one; a lost entry only costs computing a prefix again.
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
    // A replica that knows the prefix may have this many more tokens than the least loaded one:
    // about the cost of prefilling a long shared prompt again.
    static constexpr std::int64_t kAffinitySlackTokens = 8192;
    // The output tokens expected of a request without max_new_tokens; with it, the expectation is
    // max_new_tokens, but at most this many.
    static constexpr std::int64_t kExpectedOutputMax = 1024;

    ReplicaChoice(int num_replicas, std::int64_t page_size);

    // Returns the chosen replica, without recording the choice.
    [[nodiscard]] ReplicaId choose(std::span<const TokenId> prompt) const;

    // Records that a request was sent to the replica, which then has the pages of its prompt.
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
    std::vector<Entry> known_;        // empty if there is only one replica
};

}  // namespace pitstop::tokenizer
