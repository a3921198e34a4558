// The doors' requests: checking them, sending them to a replica, ending them.
#include "base/log.h"
#include "messages/codec.h"
#include "messages/context_limit.h"
#include "text/incremental_decoder.h"
#include "tokenizer_proc/doors.h"

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

// Refuses a reply about this many positions if it would be too large.
Result<> check_logprob_bytes(
    std::string_view what, std::int64_t num_positions, const messages::LogprobOptions& options
) {
    constexpr std::int64_t kBytesPerNumber = 5;
    const auto num_ids = static_cast<std::int64_t>(options.ids.size());
    const std::int64_t num_bytes =
        num_positions * (2 + 2 * options.top + num_ids) * kBytesPerNumber;
    if (num_bytes <= Doors::kLogprobBytesMax) return Ok{};
    return make_error(
        ErrorCode::kTooLarge,
        "logprobs of {} {} tokens with top {} and {} ids take {} bytes; a reply holds {}",
        num_positions,
        what,
        options.top,
        num_ids,
        num_bytes,
        Doors::kLogprobBytesMax
    );
}

// Returns why the requested logprobs do not fit a reply, or nothing. A few per output token always
// fit, because these are sent token by token.
std::optional<Error> problem_of_logprobs(
    const messages::Generate& message,
    std::int64_t prompt_len,
    const messages::SchedulerHello& replica
) {
    const messages::LogprobOptions& options = message.logprobs;
    const bool is_wide = options.top > messages::kWideTopLogprobs;
    if (is_wide && options.top > replica.vocab_size) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "logprobs.top is {}; the model has {} tokens",
            options.top,
            replica.vocab_size
        );
    }
    if (options.prompt_start >= 0) {
        const std::int64_t num_scored =
            std::max<std::int64_t>(0, prompt_len - options.prompt_start);
        if (auto fits = check_logprob_bytes("prompt", num_scored, options); !fits)
            return fits.error();
    }
    if (!is_wide) return std::nullopt;
    const std::int64_t num_output =
        message.sampling.max_new_tokens.value_or(replica.context_len - prompt_len);
    auto fits = check_logprob_bytes("output", num_output, options);
    return fits ? std::nullopt : std::optional(fits.error());
}

// Returns why the routes that the message brings cannot be followed, or nothing.
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
    if (num_rows <= Doors::kRouteBytesMax / row_bytes) return std::nullopt;
    return make_error(
        ErrorCode::kTooLarge,
        "routed experts of {} tokens, {} bytes each; a reply holds {} bytes: ask for fewer tokens, "
        "or for rows from a later one (routed_experts_start)",
        num_rows,
        row_bytes,
        Doors::kRouteBytesMax
    );
}

}  // namespace

// Returns what is wrong that decode() cannot know, except for the prompt.
std::optional<Error> Doors::problem_of(const messages::Generate& message) const {
    if (message.replica && (*message.replica < 0 || *message.replica >= config_.num_replicas)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "replica is {}; accepted is [0, {})",
            *message.replica,
            config_.num_replicas
        );
    }
    const std::int64_t vocab_size = hellos_.front()->vocab_size;
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
    if (message.input_ids) return problem_of_prompt(message, *message.input_ids);
    return std::nullopt;
}

std::optional<Error> Doors::problem_of_ids(std::string_view field, std::span<const TokenId> ids)
    const {
    return first_outside(field, ids, hellos_.front()->vocab_size);
}

// The tokenizer may have tokens that the model lacks, and the other way round.
Result<> Doors::check_decodable(std::span<const TokenId> ids) const {
    const std::int64_t end =
        std::max<std::int64_t>(hellos_.front()->vocab_size, tokenizer_->vocab_size());
    if (auto error = first_outside("ids", ids, end)) return *std::move(error);
    return Ok{};
}

std::optional<Error> Doors::problem_of_prompt(
    const messages::Generate& message, std::span<const TokenId> prompt
) const {
    const messages::SchedulerHello& replica = *hellos_.front();
    const auto prompt_len = static_cast<std::int64_t>(prompt.size());
    if (prompt_len == 0) {
        return make_error(
            ErrorCode::kInvalidArgument, "the prompt is empty; it needs at least one token"
        );
    }
    if (auto error = problem_of_ids("input_ids", prompt)) return error;
    // Without an output length there must be room for one token; with one, for all of them.
    const messages::ContextLimit limit{
        .prompt_len = prompt_len,
        .output_len = message.sampling.max_new_tokens.value_or(1),
        .context_len = replica.context_len};
    if (!limit.fits()) return messages::beyond_context(limit);
    if (auto error = problem_of_routes(message, prompt_len, replica)) return error;
    if (auto error = problem_of_brought(message, prompt_len, replica)) return error;
    return problem_of_logprobs(message, prompt_len, replica);
}

// Refuses bans of ids that are not tokens of the model.
std::optional<Error> Doors::problem_of_bans(const messages::SamplingParams& sampling) const {
    if (auto error = problem_of_ids("sampling.allowed_token_ids", sampling.allowed_token_ids))
        return error;
    for (const std::vector<TokenId>& sequence : sampling.bad_tokens) {
        if (auto error = problem_of_ids("sampling.bad_tokens", sequence)) return error;
    }
    return std::nullopt;
}

// Adds the tokens of the request's bad words to its own list.
Result<> Doors::add_bad_tokens(
    messages::SamplingParams& sampling, std::vector<std::vector<TokenId>> sequences
) const {
    if (sequences.empty()) return Ok{};
    std::ranges::move(sequences, std::back_inserter(sampling.bad_tokens));
    if (const auto problem = messages::invalid(sampling))
        return make_error(ErrorCode::kInvalidArgument, "sampling: {}", *problem);
    if (auto error = problem_of_bans(sampling)) return *std::move(error);
    return Ok{};
}

// Returns the tokens that end an output by default, ascending: the model's, and the tokenizer's
// own.
std::vector<TokenId> Doors::end_tokens() const {
    std::vector<TokenId> ids = hellos_.front()->eos_ids;
    if (config_.end_token && raw(*config_.end_token) < hellos_.front()->vocab_size)
        ids.push_back(*config_.end_token);
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

// Returns the tokenizer's end token if this request should end there and its replica does not know
// it.
std::optional<TokenId> Doors::further_stop(const messages::SamplingParams& sampling) const {
    const messages::SchedulerHello& replica = *hellos_.front();
    const std::optional<TokenId> id = config_.end_token;
    if (!id || sampling.ignore_eos || raw(*id) >= replica.vocab_size) return std::nullopt;
    const auto has = [&](const std::vector<TokenId>& ids) {
        return std::ranges::find(ids, *id) != ids.end();
    };
    if (has(replica.eos_ids) || has(sampling.stop_token_ids)) return std::nullopt;
    return id;
}

// Sends the request to a replica; a full queue is reported in the next turn. On an error nothing
// was sent, and the request is still open.
Result<> Doors::dispatch(
    OpenRequest& request, messages::Generate message, std::vector<TokenId> prompt
) {
    if (auto problem = problem_of_prompt(message, prompt)) return *std::move(problem);
    const auto prompt_len = static_cast<std::int64_t>(prompt.size());
    const ReplicaId replica =
        message.replica ? static_cast<ReplicaId>(*message.replica) : choice_->choose(prompt);
    const std::size_t tail_len = std::min(prompt.size(), text::IncrementalDecoder::kPromptTailLen);

    messages::TokenizedRequest tokenized;
    tokenized.key = next_key_;
    tokenized.text = {
        .prompt_tail = {prompt.end() - static_cast<std::ptrdiff_t>(tail_len), prompt.end()},
        .stop = std::exchange(message.sampling.stop, {}),
        .min_new_tokens = message.sampling.min_new_tokens,
        .no_stop_trim = message.sampling.no_stop_trim,
        .skip_special_tokens = message.sampling.skip_special_tokens,
        .spaces_between_special_tokens = message.sampling.spaces_between_special_tokens,
        .stream = message.stream,
        .text_output = message.text_output,
    };
    tokenized.sampling = std::move(message.sampling);
    if (const std::optional<TokenId> id = further_stop(tokenized.sampling))
        tokenized.sampling.stop_token_ids.push_back(*id);
    if (!tokenized.sampling.seed) tokenized.sampling.seed = random();
    tokenized.logprobs = std::move(message.logprobs);
    tokenized.routed_experts_start = message.routed_experts_start;
    if (message.routed_experts)
        tokenized.routed_experts = std::move(message.routed_experts->experts);
    tokenized.priority = message.priority;
    tokenized.kv_tolerance = message.kv_tolerance;
    tokenized.kv_max_lag = message.kv_max_lag;
    tokenized.client = std::move(message.client);
    tokenized.adapter = std::move(message.adapter);
    tokenized.prompt.values = std::move(prompt);
    out_.to_replicas.push_back({replica, ReplicaSocket::kRequests, encode(tokenized), tokenized.key}
    );
    next_key_ = next(next_key_);
    requests_.set_key(request, tokenized.key);
    request.replica = replica;
    request.load =
        prompt_len +
        std::min(
            tokenized.sampling.max_new_tokens.value_or(ReplicaChoice::kExpectedOutputMax),
            ReplicaChoice::kExpectedOutputMax
        );
    choice_->add(replica, tokenized.prompt.values, request.load);
    return Ok{};
}

void Doors::close(OpenRequest& request) {
    if (request.job) out_.cancelled.push_back(*request.job);
    if (request.is_sent()) choice_->remove(request.replica, request.load);
    ended_.push_back(request.id);
    requests_.close(request);
}

// Answers the request with an error, as one that was never accepted.
void Doors::refuse_request(OpenRequest& request, const Error& error) {
    ++num_refused_;
    messages::ErrorReply reply;
    reply.rid = request.rid;
    reply.error = error;
    outbox_.reply(messages::Door::kData, request.peer, encode(reply));
    close(request);
}

// Ends a request with an error chunk; the replica is not told.
void Doors::fail(OpenRequest& request, const Error& error) {
    messages::OutputChunk chunk;
    chunk.rid = request.rid;
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = error,
    };
    outbox_.add(request.peer, std::move(chunk));
    close(request);
}

// Each ends with finish.reason abort. For running requests the scheduler sends that chunk, with the
// output so far.
void Doors::abort(const std::vector<OpenRequest*>& requests, const std::string& message) {
    std::map<ReplicaId, std::vector<RequestKey>> keys;
    for (OpenRequest* request : requests) {
        if (request->is_sent()) {
            keys[request->replica].push_back(request->key);
            continue;
        }
        messages::OutputChunk chunk;  // its text is still being tokenized
        chunk.rid = request->rid;
        chunk.counts = messages::RequestCounts{};
        chunk.finish = messages::Finish{
            .reason = messages::FinishReason::kAbort,
            .verdict = messages::Verdict::done(message),
            .was_waiting = true};
        outbox_.add(request->peer, std::move(chunk));
        close(*request);
    }
    for (auto& [replica, of_replica] : keys) {
        std::ranges::sort(of_replica);
        end_in_tree(std::move(of_replica), replica, messages::EndCause::kAbort, message);
    }
}

Admin::Aborted Doors::abort_ids(const messages::Abort& call) {
    Admin::Aborted aborted;
    std::map<OpenId, OpenRequest*> requests;  // in their order of arrival; an id may be repeated
    if (call.all) {
        for (OpenRequest* request : requests_.all()) {
            requests.emplace(request->id, request);
            aborted.results.push_back({request->rid, messages::AbortOutcome::kAborted});
        }
    } else {
        for (const std::string& rid : call.rids) {
            const std::vector<OpenRequest*> found = requests_.with_rid(rid);
            for (OpenRequest* request : found) requests.emplace(request->id, request);
            messages::AbortOutcome outcome = messages::AbortOutcome::kUnknown;
            if (requests_.has_ended(rid)) outcome = messages::AbortOutcome::kAlreadyDone;
            if (!found.empty()) outcome = messages::AbortOutcome::kAborted;
            aborted.results.push_back({rid, outcome});
        }
    }
    std::vector<OpenRequest*> to_end;
    for (const auto& [id, request] : requests) {
        aborted.ending.emplace(id, request->replica);
        to_end.push_back(request);
    }
    abort(to_end, call.message.empty() ? "aborted at the admin door" : call.message);
    return aborted;
}

void Doors::end_in_tree(
    std::vector<RequestKey> keys, ReplicaId replica, messages::EndCause cause, std::string message
) {
    messages::EndRequests ends;
    ends.keys = std::move(keys);
    ends.cause = cause;
    ends.message = std::move(message);
    to_control(replica, encode(ends));
}

// Ends the requests of clients that have left or do not read: no one receives their output.
void Doors::lose_clients() {
    for (const Outbox::Lost& lost : outbox_.take_lost()) {
        std::map<ReplicaId, std::vector<RequestKey>> keys;
        std::vector<std::string> rids;
        for (OpenRequest* request : requests_.of_peer(lost.peer)) {
            if (request->is_sent()) keys[request->replica].push_back(request->key);
            rids.push_back(request->rid);
            close(*request);
        }
        const bool is_slow = lost.how == Outbox::LostHow::kSlow;
        if (const auto jobs = jobs_of_.find(lost.peer); !is_slow && jobs != jobs_of_.end()) {
            for (const auto& [call, job] : jobs->second) {
                out_.cancelled.push_back(job);
                tokenize_calls_.erase(job);
            }
            jobs_of_.erase(jobs);
        }
        if (is_slow) {
            outbox_.fail(
                lost.peer,
                rids,
                make_error(
                    ErrorCode::kResourceExhausted,
                    "slow reader: more than {} bytes of output were waiting for this client",
                    Outbox::kBacklogBytesMax
                )
            );
        }
        for (auto& [replica, of_replica] : keys) {
            end_in_tree(std::move(of_replica), replica, messages::EndCause::kPeerGone, {});
        }
        spdlog::info(
            "a client {}; {} requests ended", is_slow ? "does not read" : "is gone", rids.size()
        );
    }
}

}  // namespace pitstop::tokenizer
