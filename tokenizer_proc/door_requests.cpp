#include "tokenizer_proc/door_requests.h"

#include "base/log.h"
#include "messages/codec.h"
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

// The last chunk of a request that is aborted while its text is being tokenized.
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

messages::ConversationReply reply_to(const auto& call) {
    messages::ConversationReply reply;
    reply.call = call.call;
    reply.id = call.id;
    return reply;
}

}  // namespace

void DoorRequests::begin(
    const messages::SchedulerHello& first, int num_replicas, std::optional<TokenId> end_token
) {
    checks_.emplace(first, num_replicas, end_token);
    choice_.emplace(num_replicas, first.page_size);
}

void DoorRequests::begin_turn(TimePoint now, std::array<std::uint64_t, 2> entropy) {
    now_ = now;
    entropy_ = entropy;
    num_drawn_ = 0;
}

std::uint64_t DoorRequests::random() {
    ++num_drawn_;
    return mix64(entropy_[0] + mix64(entropy_[1] + num_drawn_));
}

std::string DoorRequests::random_rid() {
    const std::uint64_t high = random();
    return fmt::format("{:016x}{:016x}", high, random());
}

// ---- clients' messages ----

Result<> DoorRequests::handle(const std::string& peer, messages::Generate message) {
    if (to_.clients.is_slow(peer)) {
        return make_error(
            ErrorCode::kResourceExhausted, "slow reader: read what was sent before asking for more"
        );
    }
    if (requests_.size() >= kOpenMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} requests are open, the most allowed; wait for one to end",
            kOpenMax
        );
    }
    if (auto problem = checks_->problem_of(message)) return *std::move(problem);
    if (message.rid.empty()) message.rid = random_rid();
    OpenRequest* request = requests_.add(peer, message.rid);
    if (request == nullptr) {
        return make_error(
            ErrorCode::kAlreadyExists, "rid '{}' is an open request of this client", message.rid
        );
    }
    Result<> started = message.turn ? conversations_.check(peer, message.rid, *message.turn) : Ok{};
    message.client = client_path(peer, std::move(message.client));
    if (started) started = start(*request, std::move(message));
    if (!started) close(*request);
    return started;
}

// Tokenizes the request's text, if it has one, and sends it.
Result<> DoorRequests::start(OpenRequest& request, messages::Generate message) {
    if (!message.text && message.sampling.bad_words.empty()) {
        std::vector<TokenId> prompt = *std::exchange(message.input_ids, std::nullopt);
        return dispatch(request, std::move(message), std::move(prompt));
    }
    TextJob job{
        .id = to_.texts.next_job(),
        .client = message.client,
        .text = std::move(message.text),
        .bad_words = std::exchange(message.sampling.bad_words, {})};
    if (message.input_ids) job.ids = *std::exchange(message.input_ids, std::nullopt);
    request.generate = std::move(message);
    requests_.set_job(request, job.id);
    if (auto done = to_.texts.start(std::move(job))) text_done(*std::move(done));
    return Ok{};
}

Result<> DoorRequests::handle(const std::string& peer, messages::OpenConversation message) {
    if (message.id.empty()) message.id = random_rid();
    RETURN_IF_ERROR(conversations_.open(peer, message, now_));
    to_.clients.reply(messages::Door::kData, peer, encode(reply_to(message)));
    return Ok{};
}

Result<> DoorRequests::handle(const std::string& peer, const messages::CloseConversation& message) {
    RETURN_IF_ERROR(conversations_.close(peer, message.id));
    to_.clients.reply(messages::Door::kData, peer, encode(reply_to(message)));
    return Ok{};
}

Result<> DoorRequests::handle(const std::string& peer, const messages::Cancel& message) {
    std::map<OpenId, OpenRequest*> found;  // an id may be repeated
    for (const std::string& rid : message.rids) {
        if (OpenRequest* request = requests_.find(peer, rid)) found.emplace(request->id, request);
    }
    std::vector<OpenRequest*> requests;
    for (const auto& [id, request] : found) requests.push_back(request);
    abort(requests, "cancelled by the client");
    to_.texts.cancel(peer, message.calls);
    return Ok{};
}

void DoorRequests::text_done(TextDone done) {
    OpenRequest* request = requests_.find(done.id);
    if (request == nullptr) return;  // the request has ended in the meantime
    Result<> sent =
        done.error
            ? Result<>(*done.error)
            : checks_->add_bad_tokens(request->generate.sampling, std::move(done.bad_tokens));
    if (sent) sent = dispatch(*request, std::move(request->generate), std::move(done.ids));
    if (!sent) refuse(*request, sent.error());
}

// Sends the request to a replica. A full queue is reported in the next turn. After an error,
// nothing was sent, and the request is still open.
Result<> DoorRequests::dispatch(
    OpenRequest& request, messages::Generate message, std::vector<TokenId> prompt
) {
    const std::optional<messages::Turn> turn = message.turn;
    Conversations::Begin begun;
    // A turn that opens its conversation brings the whole prompt. So the prompt is checked first,
    // and a refused turn opens no conversation.
    const bool is_whole = !turn || turn->opens;
    if (is_whole) {
        if (auto problem = checks_->problem_of_prompt(message, prompt)) return *std::move(problem);
    }
    if (turn) {
        ASSIGN_OR_RETURN(begun, conversations_.begin(request, *turn, prompt, now_));
    }
    if (!is_whole) {
        if (auto problem = checks_->problem_of_prompt(message, prompt)) return *std::move(problem);
    }
    abort(requests_.with_keys(begun.replaced), "a later turn replaced it");
    if (message.replica) begun.replica = static_cast<ReplicaId>(*message.replica);
    messages::TokenizedRequest tokenized = tokenized_request(std::move(message), std::move(prompt));
    const std::vector<TokenId>& whole = tokenized.prompt.values;
    tokenized.key = next_key_;
    if (const std::optional<TokenId> id = checks_->further_stop(tokenized.sampling))
        tokenized.sampling.stop_token_ids.push_back(*id);
    if (!tokenized.sampling.seed) tokenized.sampling.seed = random();
    tokenized.conversation = begun.id;
    request.replica = begun.replica ? *begun.replica : choice_->choose(whole);
    to_.replicas.add_request(request.replica, tokenized.key, encode(tokenized));
    next_key_ = next(next_key_);
    requests_.set_key(request, tokenized.key);
    request.load = expected_tokens(tokenized);
    choice_->add(request.replica, whole, request.load);
    if (turn) conversations_.add(request, *turn, begun, whole);
    return Ok{};
}

void DoorRequests::close(OpenRequest& request) {
    if (request.job) to_.texts.cancel_job(*request.job);
    if (request.is_sent()) choice_->remove(request.replica, request.load);
    conversations_.end_turn(request, now_);
    ended_.push_back(request.id);
    requests_.close(request);
}

// Answers the request with an error, as if it had never been accepted.
void DoorRequests::refuse(OpenRequest& request, const Error& error) {
    ++num_refused_;
    messages::ErrorReply reply;
    reply.rid = request.rid;
    reply.error = error;
    to_.clients.reply(messages::Door::kData, request.peer, encode(reply));
    conversations_.drop(request);
    close(request);
}

// Ends a request with an error chunk, without telling the replica.
void DoorRequests::fail(OpenRequest& request, const Error& error) {
    messages::OutputChunk chunk;
    chunk.rid = request.rid;
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = error,
    };
    to_.clients.add(request.peer, std::move(chunk));
    conversations_.drop(request);
    close(request);
}

// Ends requests with finish.reason abort. For a running request, the scheduler sends that last
// chunk, with the output so far.
void DoorRequests::abort(const std::vector<OpenRequest*>& requests, const std::string& message) {
    std::map<ReplicaId, std::vector<RequestKey>> keys;
    for (OpenRequest* request : requests) {
        if (request->is_sent()) {
            keys[request->replica].push_back(request->key);
            continue;
        }
        to_.clients.add(request->peer, aborted_chunk(request->rid, message));
        close(*request);
    }
    for (auto& [replica, of_replica] : keys) {
        std::ranges::sort(of_replica);
        end_in_tree(std::move(of_replica), replica, messages::EndCause::kAbort, message);
    }
}

Admin::Aborted DoorRequests::abort_ids(const messages::Abort& call) {
    Admin::Aborted aborted;
    std::map<OpenId, OpenRequest*> requests;  // in the order of arrival; an id may be repeated
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

void DoorRequests::end_in_tree(
    std::vector<RequestKey> keys, ReplicaId replica, messages::EndCause cause, std::string message
) {
    messages::EndRequests ends;
    ends.keys = std::move(keys);
    ends.cause = cause;
    ends.message = std::move(message);
    to_.replicas.add_control(replica, encode(ends));
}

// Tells the replicas which conversations have ended, so that their pages are no longer held.
void DoorRequests::end_conversations() {
    conversations_.expire(now_);
    messages::EndConversations ends{.ids = conversations_.take_ended()};
    if (!ends.ids.empty()) to_.replicas.add_control_to_all(encode(ends));
}

// Ends the requests of clients that have left or do not read, because nobody receives the output.
void DoorRequests::lose_clients() {
    for (const Outbox::Lost& lost : to_.clients.take_lost()) {
        std::map<ReplicaId, std::vector<RequestKey>> keys;
        std::vector<std::string> rids;
        for (OpenRequest* request : requests_.of_peer(lost.peer)) {
            if (request->is_sent()) keys[request->replica].push_back(request->key);
            rids.push_back(request->rid);
            close(*request);
        }
        const bool is_slow = lost.how == Outbox::LostHow::kSlow;
        if (!is_slow) conversations_.lose(lost.peer);
        if (!is_slow) to_.texts.lose(lost.peer);
        if (is_slow) {
            to_.clients.fail(
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

void DoorRequests::fail_all(const Error& error) {
    for (OpenRequest* request : requests_.all()) fail(*request, error);
}

void DoorRequests::deliver(messages::TextBatch batch) {
    // Comes first, because the chunks below close their requests.
    std::map<ReplicaId, std::vector<RequestKey>> stopped;
    for (const RequestKey key : batch.stopped) {
        if (const OpenRequest* request = requests_.find(key))
            stopped[request->replica].push_back(key);
    }
    for (auto& [replica, keys] : stopped) {
        end_in_tree(std::move(keys), replica, messages::EndCause::kStopText, {});
    }
    for (messages::OutputChunk& chunk : batch.chunks) {
        OpenRequest* request = requests_.find(chunk.key);
        if (request == nullptr) continue;  // the request's client has left
        const bool is_last = chunk.finish.has_value();
        if (request->turn) conversations_.take(*request, chunk, now_);
        chunk.key = RequestKey{};
        chunk.rid = request->rid;
        to_.clients.add(request->peer, std::move(chunk));
        if (is_last) close(*request);
    }
}

void DoorRequests::refuse_unsent(const ToReplica& message) {
    OpenRequest* request = requests_.find(message.key);
    if (request == nullptr) return;  // the request has ended in the meantime
    refuse(
        *request,
        make_error(
            ErrorCode::kResourceExhausted, "the queue of replica {} is full", raw(message.replica)
        )
    );
}

std::vector<std::string> DoorRequests::peers() const {
    std::vector<std::string> all = requests_.peers();
    std::ranges::move(conversations_.peers(), std::back_inserter(all));
    return all;
}

}  // namespace pitstop::tokenizer
