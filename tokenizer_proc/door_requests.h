// The requests of the data door, from their client's message to their last chunk: checked,
// tokenized, given a key and a replica, and ended.
//
// Thread:  the loop thread only.
// Bounded: kOpenMax requests; conversations.h bounds the conversations.
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

    // What requests write to; all outlive this.
    struct To {
        Outbox& clients;
        ReplicaOutbox& replicas;
        TextCalls& texts;
    };
    // `tokenizer` may be null if no text arrives.
    DoorRequests(const text::Tokenizer* tokenizer, To to) : conversations_(tokenizer), to_(to) {}

    // The schedulers have greeted. No message of a client is handled before.
    void begin(
        const messages::SchedulerHello& first, int num_replicas, std::optional<TokenId> end_token
    );
    // A turn begins at this time, with fresh random bits for ids and seeds.
    void begin_turn(TimePoint now, std::array<std::uint64_t, 2> entropy);

    // ---- clients' messages; errors: the client must be told ----
    Result<> handle(const std::string& peer, messages::Generate message);
    Result<> handle(const std::string& peer, const messages::Cancel& message);
    Result<> handle(const std::string& peer, messages::OpenConversation message);
    Result<> handle(const std::string& peer, const messages::CloseConversation& message);
    // The text of a request is tokenized.
    void text_done(TextDone done);

    // ---- the tree's messages ----
    void deliver(messages::TextBatch batch);
    // A replica's queue was full: the request of this message was not sent.
    void refuse_unsent(const ToReplica& message);

    // ---- the end of requests ----
    Admin::Aborted abort_ids(const messages::Abort& call);
    // Ends the requests of clients that have left or do not read: no one receives their output.
    void lose_clients();
    // Tells the replicas which conversations have ended: their pages are like any others.
    void end_conversations();
    // Ends every request with this error; the replicas are not told.
    void fail_all(const Error& error);
    // Returns the requests that have ended since the last call.
    [[nodiscard]] std::vector<OpenId> take_ended() { return std::exchange(ended_, {}); }

    // REQUIRES: begin().
    [[nodiscard]] const RequestChecks& checks() const { return *checks_; }
    [[nodiscard]] std::size_t num_open() const { return requests_.size(); }
    [[nodiscard]] std::size_t num_clients() const { return requests_.num_peers(); }
    [[nodiscard]] std::int64_t num_refused() const { return num_refused_; }
    [[nodiscard]] TimePoint next_deadline() const { return conversations_.next_deadline(); }
    // Returns the clients that have an open request or conversation; some may be there twice.
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
    std::optional<RequestChecks> checks_{};  // once ready
    std::optional<ReplicaChoice> choice_{};  // once ready
    RequestKey next_key_{1};
    TimePoint now_{};  // time of this turn
    std::array<std::uint64_t, 2> entropy_{};
    std::uint64_t num_drawn_ = 0;  // numbers drawn from the entropy
    std::vector<OpenId> ended_{};
    std::int64_t num_refused_ = 0;
};

}  // namespace pitstop::tokenizer
