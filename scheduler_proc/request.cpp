#include "scheduler_proc/request.h"

#include "base/check.h"
#include "messages/context_limit.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

std::optional<Error> problem_of_length(
    const messages::TokenizedRequest& request, const ModelLimits& limits
) {
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    if (prompt_len == 0) {
        return make_error(
            ErrorCode::kInvalidArgument, "the prompt is empty; it needs at least one token"
        );
    }
    if (request.sampling.num_output_in_prompt > prompt_len) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "num_output_in_prompt is {}; the prompt has {} tokens",
            request.sampling.num_output_in_prompt,
            prompt_len
        );
    }
    const std::optional<std::int64_t>& asked = request.sampling.max_new_tokens;
    // A request without an output length needs room for one token; with a length, for that many
    // tokens.
    const std::int64_t output_len = asked.value_or(1);
    const messages::ContextLimit limit{
        .prompt_len = prompt_len, .output_len = output_len, .context_len = limits.context_len};
    if (!limit.fits()) return messages::beyond_context(limit);
    if (prompt_len > limits.pool_tokens || output_len > limits.pool_tokens - prompt_len) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} prompt tokens and {} output tokens are more than the KV pool of {} tokens",
            prompt_len,
            output_len,
            limits.pool_tokens
        );
    }
    return std::nullopt;
}

// The door has checked the entries. Checks that the bytes are whole rows of the prompt's tokens.
std::optional<Error> problem_of_brought(
    const messages::TokenizedRequest& request, const ModelLimits& limits
) {
    const std::int64_t num_bytes = std::ssize(request.routed_experts.values);
    if (num_bytes == 0) return std::nullopt;
    if (!limits.routes) {
        return make_error(
            ErrorCode::kInvalidArgument, "routed_experts: the workers report no routes"
        );
    }
    const std::int64_t row_bytes = limits.routes->row_bytes();
    if (num_bytes % row_bytes == 0 && num_bytes / row_bytes <= std::ssize(request.prompt.values))
        return std::nullopt;
    return make_error(
        ErrorCode::kInvalidArgument,
        "routed_experts has {} bytes; accepted are rows of {}, at most {}",
        num_bytes,
        row_bytes,
        request.prompt.values.size()
    );
}

std::optional<Error> problem_of_routes(
    const messages::TokenizedRequest& request, const ModelLimits& limits
) {
    const std::optional<std::int64_t>& start = request.routed_experts_start;
    if (!start) return std::nullopt;
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    if (!limits.routes) {
        return make_error(
            ErrorCode::kInvalidArgument, "routed_experts_start: the workers report no routes"
        );
    }
    if (*start >= 0 && *start <= prompt_len) return std::nullopt;
    return make_error(
        ErrorCode::kInvalidArgument,
        "routed_experts_start is {}; accepted is 0 to the length of the prompt, {}",
        *start,
        prompt_len
    );
}

std::optional<Error> problem_of_ids(
    std::string_view field, std::span<const TokenId> ids, std::int64_t vocab_size
) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (raw(ids[i]) >= 0 && raw(ids[i]) < vocab_size) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}[{}] is token {}; the model has tokens [0, {})",
            field,
            i,
            raw(ids[i]),
            vocab_size
        );
    }
    return std::nullopt;
}

}  // namespace

std::optional<Error> problem_of(
    const messages::TokenizedRequest& request, const ModelLimits& limits
) {
    if (auto error = problem_of_length(request, limits)) return error;
    if (auto text = messages::invalid(request.sampling)) {
        return Error{ErrorCode::kInvalidArgument, "sampling: " + *text};
    }
    if (auto text = messages::invalid(request.logprobs))
        return Error{ErrorCode::kInvalidArgument, *text};
    if (request.kv_max_lag < 0) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "kv_max_lag is {}; accepted is 0 or more",
            request.kv_max_lag
        );
    }
    if (request.logprobs.support && !limits.no_supports.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "sampling masks are not reported: {}; request none",
            limits.no_supports
        );
    }
    if (auto error = problem_of_routes(request, limits)) return error;
    if (auto error = problem_of_brought(request, limits)) return error;
    for (const auto& [id, bias] : request.sampling.logit_bias) {
        if (id < limits.vocab_size) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "logit_bias names token {}; the model has tokens [0, {})",
            id,
            limits.vocab_size
        );
    }
    if (auto error =
            problem_of_ids("stop_token_ids", request.sampling.stop_token_ids, limits.vocab_size))
        return error;
    if (auto error = problem_of_ids("logprobs.ids", request.logprobs.ids, limits.vocab_size))
        return error;
    if (auto error = problem_of_ids(
            "allowed_token_ids", request.sampling.allowed_token_ids, limits.vocab_size
        ))
        return error;
    for (const std::vector<TokenId>& sequence : request.sampling.bad_tokens) {
        if (auto error = problem_of_ids("bad_tokens", sequence, limits.vocab_size)) return error;
    }
    if (request.draft_ids) {
        if (auto error = problem_of_ids("draft_ids", *request.draft_ids, limits.vocab_size))
            return error;
    }
    return problem_of_ids("prompt", request.prompt.values, limits.vocab_size);
}

Request::Request(messages::TokenizedRequest request, const ModelLimits& limits)
    : key(request.key),
      priority(request.priority),
      client(std::move(request.client)),
      sampling(std::move(request.sampling)),
      logprobs(std::move(request.logprobs)),
      routes_start(request.routed_experts_start),
      brought(std::move(request.routed_experts.values)),
      text(std::move(request.text)),
      kv_tolerance(request.kv_tolerance),
      kv_max_lag(request.kv_max_lag),
      draft_ids(std::move(request.draft_ids).value_or(std::vector<TokenId>{})),
      draft_key(std::move(request.draft_key)),
      conversation(request.conversation),
      tokens(std::move(request.prompt.values)) {
    const auto prompt_len = static_cast<std::int64_t>(tokens.size());
    const std::int64_t room = std::min(limits.context_len, limits.pool_tokens) - prompt_len;
    progress = Progress(prompt_len, sampling.max_new_tokens.value_or(room));
    sampling.stop.clear();
    stop_ids = sampling.stop_token_ids;
    if (!sampling.ignore_eos)
        stop_ids.insert(stop_ids.end(), limits.eos_ids.begin(), limits.eos_ids.end());
    std::ranges::sort(stop_ids);
    stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
    if (wants_scores()) scores.start = score_start();
    if (!brought.empty()) num_brought = std::ssize(brought) / limits.routes->row_bytes();
    if (!wants_routes()) return;
    routes.shape = *limits.routes;
    forget_routes();
}

std::int64_t Request::score_start() const {
    return std::min(
        std::max<std::int64_t>(logprobs.prompt_start.value_or(0), 1), progress.prompt_len()
    );
}

bool Request::is_to_score() const {
    if (!wants_scores() || score_start() >= progress.prompt_len()) return false;
    return progress.outputs() == 0 && progress.pending() == 0 &&
           progress.planned() < progress.prompt_len();
}

std::int64_t Request::cacheable_len() const {
    if (has_brought()) return 0;
    // Scoring token i needs the logits of position i - 1.
    std::int64_t len = progress.known() - 1;
    if (wants_routes()) len = std::min(len, routed);
    return is_to_score() ? std::min(len, score_start() - 1) : len;
}

std::int64_t Request::num_routed(std::int64_t begin, std::int64_t end) const {
    return wants_routes() ? std::max<std::int64_t>(end - std::max(begin, routed), 0) : 0;
}

void Request::add_routes(std::span<const std::uint8_t> rows, std::int64_t end, Epoch epoch) {
    if (rows.empty()) return;
    const std::int64_t row_bytes = routes.shape.row_bytes();
    const std::int64_t begin = end - std::ssize(rows) / row_bytes;
    CHECK(begin <= routed);
    // The last token of the sequence has no row, because nothing follows it. Without output, that
    // is the prompt's last token.
    const std::int64_t end_max = progress.prompt_len() + progress.output_len_max() - 1;
    const std::int64_t num = std::min(end, end_max) - routed;
    if (num <= 0) return;
    const std::int64_t first = routed - begin;
    routes.append(
        rows.subspan(
            static_cast<std::size_t>(first * row_bytes), static_cast<std::size_t>(num * row_bytes)
        ),
        epoch
    );
    routed += num;
}

std::span<const std::uint8_t> Request::brought_in(std::int64_t begin, std::int64_t end) const {
    const std::int64_t num = std::min(end, num_brought) - begin;
    if (num <= 0) return {};
    const std::int64_t row_bytes = std::ssize(brought) / num_brought;
    return std::span(brought).subspan(
        static_cast<std::size_t>(begin * row_bytes), static_cast<std::size_t>(num * row_bytes)
    );
}

void Request::forget_routes() {
    routed = routes_start.value_or(0);
    routes = {.start = routed, .shape = routes.shape};
}

EpochRange Request::accepted_epochs(Epoch current) const {
    if (is_to_score()) return {current, current};
    std::int64_t oldest = raw(current);
    switch (kv_tolerance) {
        case messages::KvTolerance::kNever:
            break;
        case messages::KvTolerance::kMaxLag:
            oldest -= std::min(kv_max_lag, oldest - 1);
            break;
        case messages::KvTolerance::kKeep:
            oldest = 1;
            break;
    }
    return {std::max(Epoch{oldest}, kv_floor), current};
}

std::optional<PrefixHolder> Request::holder() const {
    if (!conversation) return std::nullopt;
    PrefixHolder holder{.conversation = *conversation};
    if (was_admitted) holder.ran = {progress.known(), cached_tokens};
    if (kv_tolerance == messages::KvTolerance::kNever) holder.lag_max = 0;
    if (kv_tolerance == messages::KvTolerance::kMaxLag) holder.lag_max = kv_max_lag;
    return holder;
}

std::optional<messages::Finish> Request::finish_of(TokenId token, std::int64_t index) const {
    if (index >= sampling.min_new_tokens && std::ranges::binary_search(stop_ids, token)) {
        return messages::Finish{.reason = messages::FinishReason::kStop, .matched_token = token};
    }
    if (index + 1 >= progress.output_len_max())
        return messages::Finish{.reason = messages::FinishReason::kLength};
    return std::nullopt;
}

messages::RequestCounts Request::counts(ReplicaId replica) const {
    const auto microseconds = [](TimePoint from, TimePoint to) {
        return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
    };
    const bool has_output = progress.outputs() > 0;
    return {
        .prompt_tokens = progress.prompt_len(),
        .cached_tokens = cached_tokens,
        .completion_tokens = progress.outputs(),
        .retractions = num_retractions,
        .replica = raw(replica),
        .queue_us = was_admitted ? microseconds(arrived_at, admitted_at) : 0,
        .prefill_us = has_output ? microseconds(admitted_at, first_token_at) : 0,
        .decode_us = has_output ? microseconds(first_token_at, last_token_at) : 0,
        .replayed_tokens = replayed_tokens,
        .drafts = drafts,
        .stale_tokens = stale_tokens,
    };
}

messages::RequestSetup Request::setup(SlotId slot) const {
    const bool needs_history =
        sampling.repetition_penalty != 1.0 || sampling.frequency_penalty != 0.0 ||
        sampling.presence_penalty != 0.0 || !sampling.bad_tokens.empty() || grammar.has_value();
    return {
        .slot = slot,
        .key = key,
        .prompt_len = progress.prompt_len(),
        .sampling = sampling,
        .logprobs = logprobs,
        .stop_ids = stop_ids,
        .history = needs_history ? tokens : std::vector<TokenId>{},
        .grammar = grammar,
    };
}

}  // namespace pitstop::scheduler
