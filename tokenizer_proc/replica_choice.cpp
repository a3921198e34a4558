#include "tokenizer_proc/replica_choice.h"

#include "base/check.h"

#include <xxhash.h>

#include <algorithm>

namespace pitstop::tokenizer {
namespace {

constexpr std::size_t kKnownMax = 1 << 16;  // 1 MiB

}  // namespace

ReplicaChoice::ReplicaChoice(int num_replicas, std::int64_t page_size)
    : page_size_(page_size),
      load_(static_cast<std::size_t>(num_replicas)),
      known_(num_replicas > 1 ? kKnownMax : 0) {
    CHECK(num_replicas > 0 && page_size > 0);
}

template <class Visit>
void ReplicaChoice::for_each_prefix(std::span<const TokenId> prompt, Visit visit) const {
    const auto prompt_len = static_cast<std::int64_t>(prompt.size());
    for (std::int64_t len = page_size_; len <= prompt_len; len *= 2) {
        visit(XXH3_64bits(prompt.data(), static_cast<std::size_t>(len) * sizeof(TokenId)));
    }
}

ReplicaId ReplicaChoice::choose(std::span<const TokenId> prompt) const {
    const auto least = std::ranges::min_element(load_);
    const auto least_loaded = static_cast<ReplicaId>(least - load_.begin());
    if (known_.empty()) return least_loaded;
    ReplicaId chosen = least_loaded;
    for_each_prefix(prompt, [&](std::uint64_t hash) {  // visits the longest known prefix last
        const Entry& entry = known_[hash % kKnownMax];
        if (entry.hash != hash || raw(entry.replica) < 0) return;
        if (load(entry.replica) <= *least + kAffinitySlackTokens) chosen = entry.replica;
    });
    return chosen;
}

void ReplicaChoice::add(ReplicaId replica, std::span<const TokenId> prompt, std::int64_t load) {
    load_[static_cast<std::size_t>(raw(replica))] += load;
    if (known_.empty()) return;
    for_each_prefix(prompt, [&](std::uint64_t hash) {
        known_[hash % kKnownMax] = {.hash = hash, .replica = replica};
    });
}

void ReplicaChoice::remove(ReplicaId replica, std::int64_t load) {
    load_[static_cast<std::size_t>(raw(replica))] -= load;
}

}  // namespace pitstop::tokenizer
