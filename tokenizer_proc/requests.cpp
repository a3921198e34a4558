// The doors' requests: sending them to a replica, ending them.
#include "base/log.h"
#include "messages/codec.h"
#include "text/incremental_decoder.h"
#include "tokenizer_proc/doors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::tokenizer {
// Sends the request to a replica; a full queue is reported in the next turn. On an error nothing
// was sent, and the request is still open.
Result<> Doors::dispatch(
    OpenRequest& request, messages::Generate message, std::vector<TokenId> prompt
) {
    if (auto problem = checks_->problem_of_prompt(message, prompt)) return *std::move(problem);
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
    if (const std::optional<TokenId> id = checks_->further_stop(tokenized.sampling))
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
    tokenized.draft_ids = std::move(message.draft_ids);
    tokenized.draft_key = std::move(message.draft_key);
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
        if (!is_slow)
            std::ranges::copy(
                text_calls_.remove_all(lost.peer), std::back_inserter(out_.cancelled)
            );
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
