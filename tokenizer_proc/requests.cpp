// The doors' requests: sending them to a replica, ending them.
#include "base/log.h"
#include "messages/codec.h"
#include "tokenizer_proc/doors.h"
#include "tokenizer_proc/tokenized_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::tokenizer {
namespace {

std::int64_t expected_tokens(const messages::TokenizedRequest& request) {
    constexpr std::int64_t kOutputMax = ReplicaChoice::kExpectedOutputMax;
    const std::int64_t output_len = request.sampling.max_new_tokens.value_or(kOutputMax);
    return std::ssize(request.prompt.values) + std::min(output_len, kOutputMax);
}

// The end of a request whose text is still being tokenized.
messages::OutputChunk aborted_chunk(const std::string& rid, const std::string& message) {
    messages::OutputChunk chunk;
    chunk.rid = rid;
    chunk.counts = messages::RequestCounts{};
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kAbort,
        .verdict = messages::Verdict::done(message),
        .was_waiting = true};
    return chunk;
}

}  // namespace

// Sends the request to a replica; a full queue is reported in the next turn. On an error nothing
// was sent, and the request is still open.
Result<> Doors::dispatch(
    OpenRequest& request, messages::Generate message, std::vector<TokenId> prompt
) {
    const std::optional<messages::Turn> turn = message.turn;
    Conversations::Begin begun;
    if (turn) {
        ASSIGN_OR_RETURN(begun, conversations_.begin(request, *turn, prompt, now_));
    }
    if (auto problem = checks_->problem_of_prompt(message, prompt)) return *std::move(problem);
    abort(requests_.with_keys(begun.replaced), "a later turn replaced it");
    if (message.replica) begun.replica = static_cast<ReplicaId>(*message.replica);
    messages::TokenizedRequest tokenized = tokenized_request(std::move(message), std::move(prompt));
    const std::vector<TokenId>& whole = tokenized.prompt.values;
    tokenized.key = next_key_;
    if (const std::optional<TokenId> id = checks_->further_stop(tokenized.sampling))
        tokenized.sampling.stop_token_ids.push_back(*id);
    if (!tokenized.sampling.seed) tokenized.sampling.seed = random();
    if (turn) tokenized.conversation = begun.id;
    request.replica = begun.replica ? *begun.replica : choice_->choose(whole);
    out_.to_replicas.push_back(
        {request.replica, ReplicaSocket::kRequests, encode(tokenized), tokenized.key}
    );
    next_key_ = next(next_key_);
    requests_.set_key(request, tokenized.key);
    request.load = expected_tokens(tokenized);
    choice_->add(request.replica, whole, request.load);
    if (turn) conversations_.add(request, *turn, begun, whole);
    return Ok{};
}

void Doors::close(OpenRequest& request) {
    if (request.job) out_.cancelled.push_back(*request.job);
    if (request.is_sent()) choice_->remove(request.replica, request.load);
    conversations_.end_turn(request, now_);
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
    conversations_.drop(request);
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
    conversations_.drop(request);
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
        outbox_.add(request->peer, aborted_chunk(request->rid, message));
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

// Tells the replicas which conversations have ended: their pages are like any others.
void Doors::end_conversations() {
    conversations_.expire(now_);
    messages::EndConversations ends{.ids = conversations_.take_ended()};
    if (ends.ids.empty()) return;
    for (int i = 0; i < config_.num_replicas; ++i) to_control(ReplicaId{i}, encode(ends));
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
        if (!is_slow) conversations_.lose(lost.peer);
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
