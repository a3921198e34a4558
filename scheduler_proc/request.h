// Holds a request inside the scheduler, from its arrival to its last chunk.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/generation.h"
#include "messages/steps.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/kv_pool.h"
#include "scheduler_proc/progress.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// Holds what the workers said of the model and of their memory; bounds every request.
struct ModelLimits {
    std::int64_t context_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t pool_tokens = 0;  // KV tokens of the replica
    std::vector<TokenId> eos_ids{};
    std::optional<messages::RouteShape> routes{};  // nothing: the workers report none
};

// Returns why this request cannot be served, or nothing. The tokenizer checks most of it too.
[[nodiscard]] std::optional<Error> problem_of(
    const messages::TokenizedRequest& request, const ModelLimits& limits
);

struct Request {
    // REQUIRES: !problem_of(request, limits).
    Request(messages::TokenizedRequest request, const ModelLimits& limits);

    // ---- what was asked for ----
    RequestKey key{};
    std::int64_t priority = 0;
    std::vector<std::string> client{};    // names its client, outermost first
    messages::SamplingParams sampling{};  // its texts are left out
    messages::LogprobOptions logprobs{};
    std::optional<std::int64_t> routes_start{};  // the token of its first row; nothing: no routes
    messages::TextOptions text{};                // moved out with the first chunk
    std::vector<TokenId> stop_ids{};             // ascending: end of sequence and stop tokens
    messages::KvTolerance kv_tolerance = messages::KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;

    // ---- what came of it ----
    Progress progress{};                // how far it is in its sequence
    std::vector<TokenId> tokens{};      // [progress.known()]: the prompt, then its output
    messages::PromptLogprobs scores{};  // filled chunk by chunk until the first output chunk
    messages::Routes routes{};          // those that no chunk has yet
    std::int64_t routed = 0;            // rows [routes_start, routed) came, in chunks or in routes
    std::int64_t cached_tokens = 0;     // prompt tokens found in the cache when first admitted
    std::int64_t num_retractions = 0;
    std::int64_t told_retractions = 0;  // as in the counts that were sent last
    // This is the version (its Version::serial) that the latest token was sampled under; 0: no
    // token yet.
    std::uint64_t version_serial = 0;
    bool is_spanning = false;   // its tokens are of more than one
    bool is_announced = false;  // the detokenizer knows it: a start was sent
    bool was_admitted = false;  // it has run before
    TimePoint arrived_at{};
    TimePoint admitted_at{};     // the first time, if it was
    TimePoint first_token_at{};  // its first output token, if there is one
    TimePoint last_token_at{};   // its latest one
    Epoch kv_floor{};  // cached prefixes older than this are not for it, whatever it tolerates
    std::uint64_t chunk_turn = 0;  // the turn that made its latest chunk,
    std::size_t chunk_index = 0;   // where in that turn's batch it is

    // ---- while it runs ----
    Lease lease{};  // with a slot while it runs, and empty else
    // Counts admissions and fresh starts: results of a step planned before are not this run's.
    std::int64_t run = 0;
    bool needs_setup = false;  // its slot is not set up yet

    [[nodiscard]] bool is_running() const { return lease.slot.has_value(); }
    [[nodiscard]] std::span<const TokenId> prompt() const {
        return std::span(tokens).first(static_cast<std::size_t>(progress.prompt_len()));
    }

    // Its rows of routes come once each, of the pass that its output follows: what an admission
    // after its first output computes anew has been told. One without output begins anew with its
    // prefill.
    [[nodiscard]] bool wants_routes() const { return routes_start.has_value(); }
    // Counts the rows that a row of a step reaching from `begin` to `end` is to report.
    [[nodiscard]] std::int64_t num_routed(std::int64_t begin, std::int64_t end) const;
    // Takes the last rows that a step which reached to `end` reports.
    void add_routes(std::span<const std::uint8_t> rows, std::int64_t end, Epoch epoch);
    // Drops those that no chunk has: its prefill begins anew.
    void forget_routes();
    [[nodiscard]] bool wants_scores() const { return logprobs.prompt_start >= 0; }
    // Tokens of its prompt are to be scored that no step in flight scores. All of its scores are of
    // one version, over that version's KV (P3), and so is its first output token: it goes on to the
    // prompt's end under the version that it began with, or begins anew.
    [[nodiscard]] bool is_to_score() const;
    // It wants so much of each position that a step can have few of them.
    [[nodiscard]] bool is_wide() const { return logprobs.top > messages::kWideTopLogprobs; }
    // Returns the prompt token that is scored first. Token 0 has no logprob.
    [[nodiscard]] std::int64_t score_start() const;
    // Returns how many tokens may come from the cache: the last one is computed to sample after it,
    // scored positions are computed to be scored, and those whose routes are wanted, as the cache
    // has none.
    [[nodiscard]] std::int64_t cacheable_len() const;
    // Returns the epochs of cached KV that it accepts when `current` serves: of that one alone
    // while it is to score, whatever it tolerates.
    [[nodiscard]] EpochRange accepted_epochs(Epoch current) const;
    // Returns why `token`, sampled as output `index`, ends it, or nothing.
    [[nodiscard]] std::optional<messages::Finish> finish_of(TokenId token, std::int64_t index)
        const;
    [[nodiscard]] messages::RequestCounts counts(ReplicaId replica) const;
    [[nodiscard]] messages::RequestSetup setup(SlotId slot) const;
};

// Puts the elder first: by priority, then by arrival. The order is total, since keys are unique.
[[nodiscard]] inline bool is_elder(const Request& a, const Request& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.key < b.key;
}

}  // namespace pitstop::scheduler
