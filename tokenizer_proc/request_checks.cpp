#include "tokenizer_proc/request_checks.h"

#include "messages/context_limit.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::tokenizer {
namespace {

// Returns the error for the first token outside [0, end), or nothing.
std::optional<Error> first_outside(
    std::string_view field, std::span<const TokenId> ids, std::int64_t end
) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (raw(ids[i]) >= 0 && raw(ids[i]) < end) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}[{}] is token {}; the model has tokens [0, {})",
            field,
            i,
            raw(ids[i]),
            end
        );
    }
    return std::nullopt;
}

constexpr std::int64_t kBytesPerNumber = 5;

// Refuses logprobs of this many positions if their reply would be too large.
Result<> check_logprob_bytes(
    std::string_view what, std::int64_t num_positions, const messages::LogprobOptions& options
) {
    const auto num_ids = static_cast<std::int64_t>(options.ids.size());
    const std::int64_t num_bytes =
        num_positions * (2 + 2 * options.top + num_ids) * kBytesPerNumber;
    if (num_bytes <= RequestChecks::kLogprobBytesMax) return Ok{};
    return make_error(
        ErrorCode::kTooLarge,
        "logprobs of {} {} tokens with top {} and {} ids take {} bytes; a reply holds {}",
        num_positions,
        what,
        options.top,
        num_ids,
        num_bytes,
        RequestChecks::kLogprobBytesMax
    );
}

// Returns the most tokens from which an output token may be drawn, as far as the request bounds
// them.
std::int64_t support_max(const messages::SamplingParams& sampling, std::int64_t vocab_size) {
    std::int64_t num = vocab_size;
    if (sampling.temperature == 0) return 1;
    if (sampling.top_k) num = std::min(num, *sampling.top_k);
    if (!sampling.allowed_token_ids.empty())
        num = std::min(num, std::ssize(sampling.allowed_token_ids));
    return num;
}

// Returns why the support of each draw cannot be reported, or nothing.
std::optional<Error> problem_of_support(
    const messages::Generate& message,
    std::int64_t prompt_len,
    const messages::SchedulerHello& replica
) {
    if (!message.logprobs.support) return std::nullopt;
    if (!messages::may_truncate(message.sampling)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a sampling mask is requested, but every token is drawn among all {}: set top_k, "
            "top_p, min_p or a grammar, or request none",
            replica.vocab_size
        );
    }
    const std::int64_t num_output =
        message.sampling.max_new_tokens.value_or(replica.context_len - prompt_len);
    const std::int64_t num_each =
        std::min(support_max(message.sampling, replica.vocab_size), messages::kSupportMax);
    const std::int64_t num_bytes = num_output * (num_each + 2) * kBytesPerNumber;
    if (num_bytes <= RequestChecks::kLogprobBytesMax) return std::nullopt;
    return make_error(
        ErrorCode::kTooLarge,
        "sampling masks of {} output tokens with up to {} tokens each take {} bytes; a reply "
        "holds {}: set a smaller top_k or max_new_tokens",
        num_output,
        num_each,
        num_bytes,
        RequestChecks::kLogprobBytesMax
    );
}

// Returns why the requested logprobs do not fit a reply, or nothing. A few logprobs per output
// token always fit, because they are sent token by token.
std::optional<Error> problem_of_logprobs(
    const messages::Generate& message,
    std::int64_t prompt_len,
    const messages::SchedulerHello& replica
) {
    const messages::LogprobOptions& options = message.logprobs;
    const bool is_wide = options.top > messages::kWideTopLogprobs;
    if (options.top > replica.vocab_size) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "logprobs.top is {}; the model has {} tokens",
            options.top,
            replica.vocab_size
        );
    }
    if (options.prompt_start) {
        const std::int64_t num_scored =
            std::max<std::int64_t>(0, prompt_len - *options.prompt_start);
        if (auto fits = check_logprob_bytes("prompt", num_scored, options); !fits)
            return fits.error();
    }
    if (!is_wide) return std::nullopt;
    const std::int64_t num_output =
        message.sampling.max_new_tokens.value_or(replica.context_len - prompt_len);
    auto fits = check_logprob_bytes("output", num_output, options);
    return fits ? std::nullopt : std::optional(fits.error());
}

// Returns why the routes that the request brings cannot be followed, or nothing.
std::optional<Error> problem_of_brought(
    const messages::Generate& message,
    std::int64_t prompt_len,
    const messages::SchedulerHello& replica
) {
    if (!message.routed_experts) return std::nullopt;
    const auto bad = [](const std::string& what) {
        return make_error(ErrorCode::kInvalidArgument, "routed_experts: {}", what);
    };
    if (!replica.routes) {
        return bad(fmt::format(
            "this model ({}) has no experts to choose from; leave it out", replica.model_type
        ));
    }
    const messages::BroughtRoutes& brought = *message.routed_experts;
    const messages::RouteShape& shape = *replica.routes;
    if (brought.shape != shape) {
        return bad(fmt::format(
            "its rows have {} layers with {} of {} experts; the model has {} with {} of {}",
            brought.shape.layers,
            brought.shape.per_token,
            brought.shape.num_experts,
            shape.layers,
            shape.per_token,
            shape.num_experts
        ));
    }
    const std::int64_t num_rows = brought.num_rows();
    if (num_rows != prompt_len && num_rows != prompt_len - 1) {
        return bad(fmt::format(
            "it has {} rows; the prompt of {} tokens takes {}, or {} without its last token's",
            num_rows,
            prompt_len,
            prompt_len,
            prompt_len - 1
        ));
    }
    const auto problem =
        messages::problem_of_rows(shape, replica.dense_layers, brought.experts.values);
    return problem ? std::optional<Error>(bad(*problem)) : std::nullopt;
}

// Returns why the requested routes cannot be reported, or nothing.
std::optional<Error> problem_of_routes(
    const messages::Generate& message,
    std::int64_t prompt_len,
    const messages::SchedulerHello& replica
) {
    if (!message.routed_experts_start) return std::nullopt;
    const std::int64_t start = *message.routed_experts_start;
    if (!replica.routes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "return_routed_experts: the workers report no routes of this model ({}), which has no "
            "experts; leave it out",
            replica.model_type
        );
    }
    if (start > prompt_len) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "routed_experts_start is {}; accepted is 0 to the length of the prompt, {}",
            start,
            prompt_len
        );
    }
    const std::int64_t output_len =
        message.sampling.max_new_tokens.value_or(replica.context_len - prompt_len);
    const std::int64_t row_bytes = replica.routes->row_bytes();
    const std::int64_t num_rows = prompt_len + output_len - start;
    if (num_rows <= RequestChecks::kRouteBytesMax / row_bytes) return std::nullopt;
    return make_error(
        ErrorCode::kTooLarge,
        "routed experts of {} tokens, {} bytes each; a reply holds {} bytes: ask for fewer tokens, "
        "or for rows from a later one (routed_experts_start)",
        num_rows,
        row_bytes,
        RequestChecks::kRouteBytesMax
    );
}

}  // namespace

RequestChecks::RequestChecks(
    messages::SchedulerHello replica, int num_replicas, std::optional<TokenId> end_token
)
    : replica_(std::move(replica)), num_replicas_(num_replicas), end_token_(end_token) {}

std::optional<Error> RequestChecks::problem_of(const messages::Generate& message) const {
    if (message.replica && (*message.replica < 0 || *message.replica >= num_replicas_)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "replica is {}; accepted is [0, {})",
            *message.replica,
            num_replicas_
        );
    }
    const std::int64_t vocab_size = replica_.vocab_size;
    for (const auto& [id, bias] : message.sampling.logit_bias) {
        if (id < vocab_size) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "sampling.logit_bias names token {}; the model has tokens [0, {})",
            id,
            vocab_size
        );
    }
    if (auto error = problem_of_ids("sampling.stop_token_ids", message.sampling.stop_token_ids))
        return error;
    if (message.sampling.stop_token_ids.size() >= messages::kStopTokensMax &&
        further_stop(message.sampling)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "sampling.stop_token_ids has {} entries; at most {} are accepted besides the "
            "tokenizer's end token",
            message.sampling.stop_token_ids.size(),
            messages::kStopTokensMax - 1
        );
    }
    if (auto error = problem_of_bans(message.sampling)) return error;
    if (auto error = problem_of_ids("logprobs.ids", message.logprobs.ids)) return error;
    if (message.draft_ids) {
        if (auto error = problem_of_ids("draft_ids", *message.draft_ids)) return error;
    }
    // The prompt of a turn is complete only together with the tokens that the turn continues from.
    if (message.input_ids && !message.turn) return problem_of_prompt(message, *message.input_ids);
    return std::nullopt;
}

std::optional<Error> RequestChecks::problem_of_ids(
    std::string_view field, std::span<const TokenId> ids
) const {
    return first_outside(field, ids, replica_.vocab_size);
}

Result<> RequestChecks::check_decodable(std::span<const TokenId> ids, std::int64_t num_known)
    const {
    const std::int64_t end = std::max(replica_.vocab_size, num_known);
    if (auto error = first_outside("ids", ids, end)) return *std::move(error);
    return Ok{};
}

std::optional<Error> RequestChecks::problem_of_prompt(
    const messages::Generate& message, std::span<const TokenId> prompt
) const {
    const auto prompt_len = static_cast<std::int64_t>(prompt.size());
    if (prompt_len == 0) {
        return make_error(
            ErrorCode::kInvalidArgument, "the prompt is empty; it needs at least one token"
        );
    }
    if (auto error = problem_of_ids("input_ids", prompt)) return error;
    // A request without an output length needs room for one token; with a length, for that many.
    const messages::ContextLimit limit{
        .prompt_len = prompt_len,
        .output_len = message.sampling.max_new_tokens.value_or(1),
        .context_len = replica_.context_len};
    if (!limit.fits()) return messages::beyond_context(limit);
    if (auto error = problem_of_routes(message, prompt_len, replica_)) return error;
    if (auto error = problem_of_brought(message, prompt_len, replica_)) return error;
    if (auto error = problem_of_support(message, prompt_len, replica_)) return error;
    return problem_of_logprobs(message, prompt_len, replica_);
}

// Refuses bans of ids that are not in the model's vocabulary.
std::optional<Error> RequestChecks::problem_of_bans(const messages::SamplingParams& sampling
) const {
    if (auto error = problem_of_ids("sampling.allowed_token_ids", sampling.allowed_token_ids))
        return error;
    for (const std::vector<TokenId>& sequence : sampling.bad_tokens) {
        if (auto error = problem_of_ids("sampling.bad_tokens", sequence)) return error;
    }
    return std::nullopt;
}

Result<> RequestChecks::add_bad_tokens(
    messages::SamplingParams& sampling, std::vector<std::vector<TokenId>> sequences
) const {
    if (sequences.empty()) return Ok{};
    std::ranges::move(sequences, std::back_inserter(sampling.bad_tokens));
    if (const auto problem = messages::invalid(sampling))
        return make_error(ErrorCode::kInvalidArgument, "sampling: {}", *problem);
    if (auto error = problem_of_bans(sampling)) return *std::move(error);
    return Ok{};
}

std::vector<TokenId> RequestChecks::end_tokens() const {
    std::vector<TokenId> ids = replica_.eos_ids;
    if (end_token_ && raw(*end_token_) < replica_.vocab_size) ids.push_back(*end_token_);
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

std::optional<TokenId> RequestChecks::further_stop(const messages::SamplingParams& sampling) const {
    const std::optional<TokenId> id = end_token_;
    if (!id || sampling.ignore_eos || raw(*id) >= replica_.vocab_size) return std::nullopt;
    const auto has = [&](const std::vector<TokenId>& ids) {
        return std::ranges::find(ids, *id) != ids.end();
    };
    if (has(replica_.eos_ids) || has(sampling.stop_token_ids)) return std::nullopt;
    return id;
}

}  // namespace pitstop::tokenizer
