// A request inside the scheduler, from its arrival to its last chunk.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/generation.h"
#include "messages/steps.h"
#include "scheduler_proc/adapters.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/kv_pool.h"
#include "scheduler_proc/progress.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// Limits that the workers' model and memory set for every request.
struct ModelLimits {
    std::int64_t context_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t pool_tokens = 0;  // KV tokens of the replica
    std::vector<TokenId> eos_ids{};
    std::optional<messages::RouteShape> routes{};  // absent: the workers report no routes
    std::vector<std::int64_t> dense_layers{};      // with routes: the layers without experts
    std::string no_supports{};  // why no supports of draws are reported; empty: they are reported
};

// Returns why this request cannot be served, or nothing. The tokenizer makes most checks, too.
[[nodiscard]] std::optional<Error> problem_of(
    const messages::TokenizedRequest& request, const ModelLimits& limits
);

struct Request {
    // REQUIRES: !problem_of(request, limits).
    Request(messages::TokenizedRequest request, const ModelLimits& limits);

    // ---- the request's parameters ----
    RequestKey key{};
    std::int64_t priority = 0;
    std::vector<std::string> client{};    // identifies the client, outermost first
    messages::SamplingParams sampling{};  // without the grammar's texts
    messages::LogprobOptions logprobs{};
    // the first token whose routes are reported; absent: no routes
    std::optional<std::int64_t> routes_start{};
    // [num_brought, layers, per_token], the routes that its first tokens must use
    std::vector<std::uint8_t> brought{};
    std::int64_t num_brought = 0;
    messages::TextOptions text{};     // moved out with the first chunk
    std::vector<TokenId> stop_ids{};  // ascending: end of sequence and stop tokens
    messages::KvTolerance kv_tolerance = messages::KvTolerance::kNever;
    std::int64_t kv_max_lag = 0;
    std::optional<AdapterUse> adapter{};           // for its next row
    std::optional<messages::GrammarId> grammar{};  // from the request's arrival to its end
    std::vector<TokenId> draft_ids{};              // texts to draft from
    std::optional<std::string> draft_key{};
    std::optional<messages::ConversationId> conversation{};

    // ---- its progress and results ----
    Progress progress{};                // its position in its sequence
    std::vector<TokenId> tokens{};      // [progress.known()]: the prompt, then the output
    messages::PromptLogprobs scores{};  // filled chunk by chunk until the first output chunk
    messages::Routes routes{};          // rows that are in no chunk yet
    std::int64_t routed = 0;  // rows [routes_start, routed) have arrived, in chunks or in `routes`
    std::int64_t cached_tokens = 0;    // prompt tokens that the cache had at the first admission
    std::int64_t replayed_tokens = 0;  // the next prompt tokens, cached without a state
    std::int64_t stale_tokens = 0;     // of a turn: the next tokens, cached under other weights
    std::int64_t num_retractions = 0;
    std::int64_t told_retractions = 0;              // the value in the latest counts sent
    std::optional<messages::DraftCounts> drafts{};  // with speculation only
    // The Version::serial of the weights that sampled the latest token; 0: no token yet.
    std::uint64_t version_serial = 0;
    std::optional<messages::AdapterId> latest_adapter_id{};  // of the latest token, if any
    std::optional<messages::AdapterVersion> latest_adapter{};
    bool is_spanning = false;     // its tokens have more than one version
    bool is_announced = false;    // the detokenizer knows it: a start was sent
    bool was_admitted = false;    // it has run before
    bool awaits_grammar = false;  // the workers still compile it
    TimePoint arrived_at{};
    TimePoint admitted_at{};     // when it was first admitted, if it was
    TimePoint first_token_at{};  // when its first output token arrived, if any
    TimePoint last_token_at{};   // when its latest output token arrived
    Epoch kv_floor{};  // older cached prefixes are not used, whatever the request tolerates
    std::uint64_t chunk_turn = 0;  // the turn that made its latest chunk
    std::size_t chunk_index = 0;   // the chunk's place in that turn's batch

    // ---- while it runs ----
    Lease lease{};  // with a slot while it runs, otherwise empty
    // Counts admissions and fresh starts. A step's result counts only if the step was planned in
    // the same run.
    std::int64_t run = 0;
    bool needs_setup = false;  // its slot is not set up yet

    [[nodiscard]] bool is_running() const { return lease.slot.has_value(); }
    [[nodiscard]] std::span<const TokenId> prompt() const {
        return std::span(tokens).first(static_cast<std::size_t>(progress.prompt_len()));
    }

    // Each row of routes is sent once, from the pass on which the output is based. After the first
    // output, a new admission computes some rows again, which are not sent again. Before the first
    // output, a new prefill starts the rows anew.
    [[nodiscard]] bool wants_routes() const { return routes_start.has_value(); }
    // The number of rows to report for a row of a step from `begin` to `end`.
    [[nodiscard]] std::int64_t num_routed(std::int64_t begin, std::int64_t end) const;
    // Appends the rows that a step up to position `end` reports.
    void add_routes(std::span<const std::uint8_t> rows, std::int64_t end, Epoch epoch);
    // Returns whether the request brings routes. Such a request uses no cached KV, because other
    // experts computed it, and adds none to the cache.
    [[nodiscard]] bool has_brought() const { return num_brought > 0; }
    // Returns the rows that the request brings for tokens [begin, end).
    [[nodiscard]] std::span<const std::uint8_t> brought_in(std::int64_t begin, std::int64_t end)
        const;
    // Drops the rows that are in no chunk yet, because the prefill starts anew.
    void forget_routes();
    [[nodiscard]] bool wants_scores() const { return logprobs.prompt_start.has_value(); }
    // Returns whether some prompt tokens must be scored and no step in flight scores them. All
    // scores and the first output token belong to one version, and to KV of that version alone
    // (P3). So the request continues to the prompt's end under the version that it began with, or
    // starts anew.
    [[nodiscard]] bool is_to_score() const;
    // Returns whether the request wants so many logprobs per position that a step has room for few
    // positions.
    [[nodiscard]] bool is_wide() const { return logprobs.top > messages::kWideTopLogprobs; }
    // Returns the first prompt token that is scored. Token 0 has no logprob.
    [[nodiscard]] std::int64_t score_start() const;
    // Returns how many tokens may come from the cache. Three kinds are always computed: the last
    // token, to sample after it; scored positions; and positions whose routes are wanted, because
    // the cache has no routes. A request that brings routes computes all its tokens.
    [[nodiscard]] std::int64_t cacheable_len() const;
    // Returns the epochs of cached KV that the request accepts while `current` serves: only
    // `current` while the request must be scored, whatever it tolerates.
    [[nodiscard]] EpochRange accepted_epochs(Epoch current) const;
    // Returns the conversation that holds its pages after its end; nothing if it is no turn.
    [[nodiscard]] std::optional<PrefixHolder> holder() const;
    // Returns why `token`, sampled as output `index`, ends the request, or nothing.
    [[nodiscard]] std::optional<messages::Finish> finish_of(TokenId token, std::int64_t index)
        const;
    [[nodiscard]] messages::RequestCounts counts(ReplicaId replica) const;
    [[nodiscard]] messages::RequestSetup setup(SlotId slot) const;
    [[nodiscard]] std::optional<messages::AdapterId> adapter_id() const {
        return adapter ? std::optional(adapter->id) : std::nullopt;
    }
};

// Orders the older request first: by priority, then by arrival. Keys are unique, so it is total.
[[nodiscard]] inline bool is_elder(const Request& a, const Request& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.key < b.key;
}

}  // namespace pitstop::scheduler
