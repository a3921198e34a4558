// Statistics of a replica's prefix cache: tokens that were found, and tokens that were computed
// again although the cache had their KV.
#pragma once

#include "messages/fields.h"

#include <cstdint>

namespace pitstop::messages {

// Prompt tokens found in the prefix cache, by lag. A token's lag is the number of epochs between
// the oldest KV of its page and the version that served then.
struct CacheHits {
    static constexpr std::int64_t kLagMax = 16;  // this entry counts larger lags, too
    std::int64_t lag = 0;
    std::int64_t tokens = 0;

    template <class F>
    void fields(F&& f) {
        f("lag", lag, "epochs; 16: 16 or more");
        f("tokens",
          tokens,
          "tokens found in the cache, including those of requests that were "
          "retracted");
    }
    friend bool operator==(const CacheHits&, const CacheHits&) = default;
};

// Counts of checkpoints: copies of requests' recurrent state that belong to pages of the prefix
// cache. A request can continue a cached prefix only if the prefix ends at a checkpoint.
struct CheckpointStatus {
    std::int64_t places_total = 0;
    std::int64_t places_free = 0;
    std::int64_t saved_total = 0;
    std::int64_t restored_total = 0;
    std::int64_t evicted_total = 0;
    std::int64_t replayed_tokens_total = 0;

    template <class F>
    void fields(F&& f) {
        f("places_total", places_total, "places on every rank; 0: a rank has no memory for them");
        f("places_free", places_free, "free places among places_total");
        f("saved_total", saved_total, "states that were saved");
        f("restored_total", restored_total, "requests that continued from a saved state");
        f("evicted_total", evicted_total, "checkpoints dropped to make room for others");
        f("replayed_tokens_total",
          replayed_tokens_total,
          "prompt tokens of admitted requests, computed again although the prefix cache had them: "
          "no checkpoint of the state after them existed");
    }
    friend bool operator==(const CheckpointStatus&, const CheckpointStatus&) = default;
};

}  // namespace pitstop::messages
