// The requests of the data door, from their client's message to their last chunk. The door checks
// and tokenizes each request, gives it a key and a replica, and ends it.
//
// Thread:  the loop thread only.
// Bounded: kOpenMax requests; conversations by conversations.h.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/control.h"
#include "messages/generation.h"
#include "messages/greeting.h"
#include "text/tokenizer.h"
#include "tokenizer_proc/admin.h"
#include "tokenizer_proc/conversations.h"
#include "tokenizer_proc/outbox.h"
#include "tokenizer_proc/replica_choice.h"
#include "tokenizer_proc/replica_outbox.h"
#include "tokenizer_proc/request_checks.h"
#include "tokenizer_proc/request_table.h"
#include "tokenizer_proc/text_calls.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class DoorRequests {
  public:
    static constexpr std::size_t kOpenMax = std::size_t{1} << 18;

    // The receivers of the requests' messages; all must outlive this object.
    struct To {
        Outbox& clients;
        ReplicaOutbox& replicas;
        TextCalls& texts;
    };
    // `tokenizer`: null if no text arrives.
    DoorRequests(const text::Tokenizer* tokenizer, To to) : conversations_(tokenizer), to_(to) {}

    // Called when all schedulers have greeted, and before any message of a client is handled.
    void begin(
        const messages::SchedulerHello& first, int num_replicas, std::optional<TokenId> end_token
    );
    // Begins a turn at this time, with fresh random bits for ids and seeds.
    void begin_turn(TimePoint now, std::array<std::uint64_t, 2> entropy);

    // ---- clients' messages; the client must be told of errors ----
    Result<> handle(const std::string& peer, messages::Generate message);
    Result<> handle(const std::string& peer, const messages::Cancel& message);
    Result<> handle(const std::string& peer, messages::OpenConversation message);
    Result<> handle(const std::string& peer, const messages::CloseConversation& message);
    // Handles a request's text that has been tokenized.
    void text_done(TextDone done);

    // ---- the tree's messages ----
    void deliver(messages::TextBatch batch);
    // Refuses the request of this message, which was not sent because a replica's queue was full.
    void refuse_unsent(const ToReplica& message);

    // ---- the end of requests ----
    Admin::Aborted abort_ids(const messages::Abort& call);
    // Ends the requests of clients that have left or do not read: nobody receives their output.
    void lose_clients();
    // Tells the replicas which conversations have ended, so that their pages are no longer held.
    void end_conversations();
    // Ends every request with this error, without telling the replicas.
    void fail_all(const Error& error);
    // Returns the requests that have ended since the last call.
    [[nodiscard]] std::vector<OpenId> take_ended() { return std::exchange(ended_, {}); }

    // REQUIRES: begin().
    [[nodiscard]] const RequestChecks& checks() const { return *checks_; }
    [[nodiscard]] std::size_t num_open() const { return requests_.size(); }
    [[nodiscard]] std::size_t num_clients() const { return requests_.num_peers(); }
    [[nodiscard]] std::int64_t num_refused() const { return num_refused_; }
    [[nodiscard]] TimePoint next_deadline() const { return conversations_.next_deadline(); }
    // Returns the clients that have an open request or conversation; a client may appear twice.
    [[nodiscard]] std::vector<std::string> peers() const;

  private:
    Result<> start(OpenRequest& request, messages::Generate message);
    Result<> dispatch(
        OpenRequest& request, messages::Generate message, std::vector<TokenId> prompt
    );
    void close(OpenRequest& request);
    void abort(const std::vector<OpenRequest*>& requests, const std::string& message);
    void end_in_tree(
        std::vector<RequestKey> keys,
        ReplicaId replica,
        messages::EndCause cause,
        std::string message
    );
    void refuse(OpenRequest& request, const Error& error);
    void fail(OpenRequest& request, const Error& error);
    [[nodiscard]] std::uint64_t random();
    [[nodiscard]] std::string random_rid();

    RequestTable requests_{};
    Conversations conversations_;
    To to_;
    std::optional<RequestChecks> checks_{};  // set by begin()
    std::optional<ReplicaChoice> choice_{};  // set by begin()
    RequestKey next_key_{1};
    TimePoint now_{};  // time of this turn
    std::array<std::uint64_t, 2> entropy_{};
    std::uint64_t num_drawn_ = 0;  // numbers drawn from the entropy
    std::vector<OpenId> ended_{};
    std::int64_t num_refused_ = 0;
};

}  // namespace pitstop::tokenizer
