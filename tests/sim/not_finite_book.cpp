#include "tests/sim/not_finite_book.h"

#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace pitstop::sim {
namespace {

using Kind = messages::NotFiniteKind;

// One in four versions has diverged, never the first. One in 40 of its tokens overflows everywhere,
// and one in 40 in its logits alone.
constexpr std::uint64_t kDivergedOneIn = 4;
constexpr std::uint64_t kOverflowsOneIn = 40;
constexpr std::uint64_t kScoresOneIn = 60;

bool has_diverged(WeightsId weights) {
    const auto id = static_cast<std::uint64_t>(weights);
    return id != 0 && hash_of(id, 0xd17e) % kDivergedOneIn == 0;
}

struct Said {
    std::string what{};
    bool is_there = false;  // false: this token or an earlier one
    bool is_output = false;
    std::int64_t index = 0;  // of the prompt or of the output
    StepId step{};
    Epoch epoch{};
};

// The texts in docs/troubleshooting.md.
std::optional<Said> parse(const std::string& message) {
    static const std::regex kForm(
        "(.*) (for|at or before) (prompt|output) token (\\d+), in step (\\d+) under weight epoch "
        "(\\d+)"
    );
    std::smatch parts;
    if (!std::regex_match(message, parts, kForm)) return std::nullopt;
    return Said{
        .what = parts[1],
        .is_there = parts[2] == "for",
        .is_output = parts[3] == "output",
        .index = std::stoll(parts[4]),
        .step = StepId{std::stoll(parts[5])},
        .epoch = Epoch{std::stoll(parts[6])}};
}

std::optional<Kind> kind_of(const std::string& what) {
    if (what == "the hidden state was not finite") return Kind::kState;
    if (what == "the logits were not finite") return Kind::kLogits;
    if (what.starts_with("the request's penalties, bias and temperature made its scores"))
        return Kind::kScores;
    return std::nullopt;
}

// Returns whether the request needs the logits of this position. Scores come with the first output.
// A retracted request computes its outputs again for their KV alone.
bool wants_logits(
    const messages::TokenizedRequest& request, std::int64_t num_outputs, std::int64_t position
) {
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    const std::int64_t first = std::max<std::int64_t>(request.logprobs.prompt_start.value_or(0), 1);
    if (request.logprobs.prompt_start && num_outputs == 0 && first < prompt_len &&
        position + 1 >= first)
        return true;
    return position + 1 == prompt_len + num_outputs && request.sampling.max_new_tokens != 0;
}

}  // namespace

Finite finite_at(TokenId token, WeightsId weights) {
    if (!has_diverged(weights)) return Finite::kAll;
    const std::uint64_t h = hash_of(raw(token), static_cast<std::uint64_t>(weights), 0xf1);
    if (h % kOverflowsOneIn == 0) return Finite::kNothing;
    return h % kOverflowsOneIn == 1 ? Finite::kAllButLogits : Finite::kAll;
}

bool are_scores_finite(std::uint64_t seed, std::int64_t output_index, WeightsId weights) {
    return !has_diverged(weights) ||
           hash_of(seed, output_index, static_cast<std::uint64_t>(weights), 0x5c) % kScoresOneIn !=
               0;
}

std::optional<std::string> NotFiniteBook::problem_of_error(
    const messages::TokenizedRequest& request,
    const std::vector<TokenId>& outputs,
    const std::string& message,
    const WeightsAt& weights_at
) {
    const std::uint64_t key = raw(request.key);
    const std::optional<Said> said = parse(message);
    const std::optional<Kind> kind = said ? kind_of(said->what) : std::nullopt;
    if (!kind) return fmt::format("request {} ends and does not say where: {}", key, message);
    const std::optional<WeightsId> weights = weights_at(said->epoch);
    if (!weights) return fmt::format("request {}: no such epoch: {}", key, message);
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    const std::int64_t token = said->index + (said->is_output ? prompt_len : 0);
    const std::int64_t position = token - (*kind == Kind::kState ? 0 : 1);
    if (position < 0 || position >= prompt_len + std::ssize(outputs) ||
        said->is_output != (token >= prompt_len))
        return fmt::format("request {} has no such token: {}", key, message);

    const auto finite = [&](std::int64_t at) {
        const bool is_of_prompt = at < prompt_len;
        const std::vector<TokenId>& tokens = is_of_prompt ? request.prompt.values : outputs;
        return finite_at(
            tokens[static_cast<std::size_t>(at - (is_of_prompt ? 0 : prompt_len))], *weights
        );
    };
    const auto met = met_.find(request.key);
    // The KV that is not finite may belong to an earlier version, which the request tolerates and
    // which is not known here.
    const bool may_be_older = request.kv_tolerance != messages::KvTolerance::kNever;
    const bool is_lent = met != met_.end() && met->second.front().is_lent;
    const bool is_wanted = wants_logits(request, std::ssize(outputs), position);
    bool is_right = false;
    if (*kind == Kind::kScores) {
        is_right = said->is_there && said->is_output && finite(position) == Finite::kAll &&
                   !are_scores_finite(*request.sampling.seed, said->index, *weights);
    } else {
        is_right = is_wanted == (*kind == Kind::kLogits);
        bool is_bad = finite(position) == Finite::kNothing ||
                      (is_wanted && finite(position) == Finite::kAllButLogits) ||
                      (!said->is_there && may_be_older && is_lent);
        for (std::int64_t at = 0; !said->is_there && at < position; ++at)
            is_bad = is_bad || finite(at) == Finite::kNothing;
        is_right = is_right && is_bad;
    }
    if (!is_right) return fmt::format("request {}: that is finite: {}", key, message);

    Place place{said->step, said->epoch, position, *kind, !said->is_there};
    // Pages are also forgotten for a token whose logits are not needed: other requests may share
    // its state.
    bool may_be_lent = may_be_older;
    for (std::int64_t at = 0; at < position; ++at)
        may_be_lent = may_be_lent || finite(at) == Finite::kAllButLogits;
    if (may_be_lent) place.is_lent = is_lent;
    if (met == met_.end() || met->second.front() != place)
        return fmt::format("request {} met something else first, or nothing: {}", key, message);
    ended_.push_back(request.key);
    ++num_ended_[static_cast<std::size_t>(*kind)];
    return std::nullopt;
}

std::optional<std::string> NotFiniteBook::problem_of_end(
    const messages::TokenizedRequest& request, std::int64_t num_outputs
) const {
    const auto met = met_.find(request.key);
    if (met == met_.end()) return std::nullopt;
    // A pass beyond the last output does not count.
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    const std::int64_t last = prompt_len - 1 + std::max<std::int64_t>(num_outputs - 1, 0);
    const std::int64_t position = met->second.front().position;
    if (position > last) return std::nullopt;
    return fmt::format(
        "request {} goes on, and its position {} was not finite", raw(request.key), position
    );
}

std::optional<std::string> NotFiniteBook::problem_of_score(
    const messages::TokenizedRequest& request, std::int64_t index, WeightsId weights
) {
    const std::vector<TokenId>& prompt = request.prompt.values;
    bool is_finite =
        finite_at(prompt[static_cast<std::size_t>(index - 1)], weights) == Finite::kAll;
    for (std::int64_t i = 0; i < index; ++i) {
        is_finite = is_finite &&
                    finite_at(prompt[static_cast<std::size_t>(i)], weights) != Finite::kNothing;
    }
    if (is_finite) return std::nullopt;
    return fmt::format(
        "request {}: prompt token {} has a score of logits that are not finite",
        raw(request.key),
        index
    );
}

}  // namespace pitstop::sim
