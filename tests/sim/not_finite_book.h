// The passes of the simulator's model that are not finite, and the requests that end because of
// them. A request ends exactly if its own pass met such a token; the error names the token.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"
#include "messages/not_finite.h"
#include "tests/sim/weights_id.h"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::sim {

// ---- the model: some versions have diverged, and overflow at some tokens ----

// The finite parts of a token's pass. kNothing: tokens that attend to it are not finite either.
enum class Finite { kAll, kAllButLogits, kNothing };
[[nodiscard]] Finite finite_at(TokenId token, WeightsId weights);
// Returns whether the logits of this output are finite after the request's own changes to them.
[[nodiscard]] bool are_scores_finite(
    std::uint64_t seed, std::int64_t output_index, WeightsId weights
);

class NotFiniteBook {
  public:
    struct Place {
        StepId step{};
        Epoch epoch{};
        std::int64_t position = 0;  // in the request's context
        messages::NotFiniteKind kind{};
        bool is_lent = false;  // from a pass in progress: the token is this or an earlier one
        friend bool operator==(const Place&, const Place&) = default;
    };
    using WeightsAt = std::function<std::optional<WeightsId>(Epoch)>;

    // The request's prefill begins.
    void begins(RequestKey key) { met_.erase(key); }
    // A pass of the request met this token first.
    void met(RequestKey key, const Place& place) { met_[key].push_back(place); }

    // Each returns what is wrong, or nothing. `outputs`: all of the request's output. The request
    // ends with the error `message`.
    [[nodiscard]] std::optional<std::string> problem_of_error(
        const messages::TokenizedRequest& request,
        const std::vector<TokenId>& outputs,
        const std::string& message,
        const WeightsAt& weights_at
    );
    // The request ran to its end.
    [[nodiscard]] std::optional<std::string> problem_of_end(
        const messages::TokenizedRequest& request, std::int64_t num_outputs
    ) const;
    // The request's prompt token `index` has a score of these weights, over their KV alone.
    [[nodiscard]] static std::optional<std::string> problem_of_score(
        const messages::TokenizedRequest& request, std::int64_t index, WeightsId weights
    );

    // Requests that ended because of a value that is not finite. Later requests may repeat their
    // prompts.
    [[nodiscard]] const std::vector<RequestKey>& ended() const { return ended_; }
    // The number of such requests, by kind.
    [[nodiscard]] const std::array<std::int64_t, 3>& num_ended() const { return num_ended_; }

  private:
    std::map<RequestKey, std::vector<Place>> met_{};  // since its prefill began
    std::vector<RequestKey> ended_{};
    std::array<std::int64_t, 3> num_ended_{};
};

}  // namespace pitstop::sim
