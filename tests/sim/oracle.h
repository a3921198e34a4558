// Properties that must hold for a run, separate from the code under test.
//
// The model here is a hash: the token and the logprob of a request's output index i depend only on
// its seed, on i and on the weights. So the oracle can check every emitted token, given the epoch
// that its span names. The oracle also follows every KV entry that workers write and read. An entry
// has its token, its position, the chain of tokens before it and its epoch. So the first wrong
// sharing, freeing or overwriting of a page is found.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"
#include "messages/steps.h"
#include "tests/sim/adapter_book.h"
#include "tests/sim/not_finite_book.h"
#include "tests/sim/route_book.h"
#include "tests/sim/weights_id.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::sim {

inline constexpr std::int32_t kVocab = 40;
inline constexpr TokenId kEos{1};

struct Epochs {
    std::int64_t min = 0;
    std::int64_t max = 0;
    friend bool operator==(const Epochs&, const Epochs&) = default;
};

// The model of the simulation.
[[nodiscard]] TokenId token_at(
    std::uint64_t seed,
    std::int64_t output_index,
    WeightsId weights,
    bool may_stop,
    const std::vector<TokenId>& stop_ids
);
[[nodiscard]] float logprob_at(std::uint64_t seed, std::int64_t output_index, WeightsId weights);
// A prompt token's score also depends on the epochs of the KV that its pass attended to.
[[nodiscard]] float score_at(
    TokenId target, std::int64_t position, WeightsId weights, const Epochs& kv
);

class Oracle {
  public:
    // The first problem found, with the virtual time; nothing: none so far.
    [[nodiscard]] const std::optional<std::string>& problem() const { return problem_; }
    void fail(std::string what) {
        if (!problem_) problem_ = std::move(what);
    }

    // ---- requests ----
    void submitted(const messages::TokenizedRequest& request);
    // The request's client has ended the request and wants no answer.
    void silenced(RequestKey key) { silenced_.insert(key); }
    void abort_asked(RequestKey key) { abort_asked_.insert(key); }
    // A scheduler has announced the request to the detokenizer.
    void announced(RequestKey key);
    void emitted(const messages::OutputChunk& chunk);
    void dropped(RequestKey key);
    [[nodiscard]] bool is_over(RequestKey key) const {
        return finished_.contains(key) || silenced_.contains(key);
    }
    [[nodiscard]] std::vector<RequestKey> unanswered() const;
    // A worker scored tokens of the request's prompt under this epoch.
    void scored(RequestKey key, Epoch epoch) { scoring_epochs_[key].insert(epoch); }
    // A worker computed the prompt's last token, over KV of these epochs.
    void read_prompt(RequestKey key, Epochs kv) { kv_of_prompt_[key] = kv; }
    // A weight update with policy abort, or a pause abort, may end requests whose clients did not
    // ask for that.
    void mass_abort_allowed() { is_mass_abort_allowed_ = true; }

    // ---- weights ----
    void loaded(Epoch epoch, WeightsId weights) { weights_[epoch] = weights; }
    // A rank makes `epoch` live. All ranks must hold the same weights for it.
    void committed(Epoch epoch, WeightsId weights);
    [[nodiscard]] WeightsId weights_at(Epoch epoch) const { return weights_.at(epoch); }
    void voted(std::uint64_t update, int replica, int rank, bool is_ok);
    // A rank executes the commit of an update over `num_replicas` * `tp` ranks.
    void commit_ordered(std::uint64_t update, int num_replicas, int tp);

    // ---- passes ----
    // Every rank reports each plan as it runs it.
    void ran(
        int replica, int rank, StepId step, Epoch plan_epoch, Epoch live_epoch, WeightsId live
    );
    // A worker sets the request up: its prefill begins.
    void begins(RequestKey key) {
        not_finite_.begins(key);
        if (!sampled_.contains(key)) routes_.begins(key);
    }
    // The last sample of a request's output `index`, and the epochs that its pass attended to.
    // Without a token if the pass was not finite.
    void sampled(RequestKey key, std::int64_t index, TokenId token, Epochs kv);
    [[nodiscard]] NotFiniteBook& not_finite() { return not_finite_; }
    [[nodiscard]] AdapterBook& adapters() { return adapters_; }
    [[nodiscard]] RouteBook& routes() { return routes_; }
    // From now on, requests for adapters that are loaded are carried out.
    void note_rest() { is_at_rest_ = true; }
    // Token `position` of a request's context, as far as it is known here.
    [[nodiscard]] std::optional<TokenId> context_token(RequestKey key, std::int64_t position) const;
    [[nodiscard]] const messages::TokenizedRequest& request(RequestKey key) const {
        return requests_.at(key);
    }

    std::int64_t num_tokens_checked = 0;
    std::int64_t num_spans_mixed = 0;     // spans over KV of several versions
    std::int64_t num_requests_split = 0;  // requests whose output has several versions
    std::int64_t num_cache_hits = 0;
    std::int64_t num_scores_checked = 0;
    std::int64_t num_scorings_cut = 0;  // by a commit, and begun anew

  private:
    struct Sampled {
        TokenId token{};
        Epochs kv{};
    };

    // Each of these returns what is wrong with a chunk, or nothing. First: whether the request may
    // get a chunk at all.
    [[nodiscard]] std::optional<std::string> problem_of_turn(RequestKey key) const;
    // As many tokens as its spans say, and as many logprobs as requested.
    [[nodiscard]] static std::optional<std::string> problem_of_lengths(
        const messages::OutputChunk& chunk, const messages::TokenizedRequest& request
    );
    // The chunk's epochs were live, and none is older than the last one that this request saw.
    [[nodiscard]] std::optional<std::string> problem_of_epochs(
        RequestKey key, const messages::Span& span
    ) const;
    // The prompt's scores all belong to the first span's version, over that version's KV alone. A
    // request that asked for no scores gets none. A request that ran to its end gets all.
    [[nodiscard]] std::optional<std::string> problem_of_scores(
        const messages::OutputChunk& chunk, const messages::TokenizedRequest& request
    );
    // A request without output names its version and all KV that it read.
    [[nodiscard]] std::optional<std::string> problem_of_no_output(const messages::OutputChunk& chunk
    ) const;
    // Token `at` of the chunk, its logprob and the epochs of its KV, compared with the model.
    [[nodiscard]] std::optional<std::string> problem_of_output(
        const messages::OutputChunk& chunk,
        std::size_t at,
        const messages::Span& span,
        const messages::TokenizedRequest& request
    );
    [[nodiscard]] std::optional<std::string> problem_of_counts(
        RequestKey key, const messages::RequestCounts& counts
    );
    // The chunk's rows of routes, compared with those of the tokens up to the chunk's last.
    [[nodiscard]] std::optional<std::string> problem_of_routes(const messages::OutputChunk& chunk);
    void count_epochs(RequestKey key, const messages::Span& span);
    void check_finish(const messages::OutputChunk& chunk, const messages::Finish& finish);
    void check_error(RequestKey key, const messages::Verdict& verdict);

    std::optional<std::string> problem_{};
    std::map<RequestKey, messages::TokenizedRequest> requests_{};
    std::map<RequestKey, std::vector<Sampled>> sampled_{};
    std::map<RequestKey, std::vector<TokenId>> outputs_{};
    std::map<RequestKey, Epochs> kv_of_prompt_{};
    std::map<RequestKey, std::set<Epoch>> scoring_epochs_{};
    std::map<RequestKey, Epoch> last_epoch_{};
    std::map<RequestKey, std::int64_t> num_retractions_{};
    std::set<RequestKey> announced_{};
    std::set<RequestKey> finished_{};
    std::set<RequestKey> silenced_{};
    std::set<RequestKey> abort_asked_{};
    bool is_mass_abort_allowed_ = false;
    std::map<Epoch, WeightsId> weights_{};
    NotFiniteBook not_finite_{};
    AdapterBook adapters_{};
    RouteBook routes_{};
    bool is_at_rest_ = false;
    std::map<std::uint64_t, std::set<std::pair<int, int>>> votes_{};  // update -> (replica, rank)
    std::map<std::pair<int, StepId>, std::pair<Epoch, WeightsId>> passes_{};
};

}  // namespace pitstop::sim
