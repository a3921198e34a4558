// The two doors of the tree, the core of tokenizer_proc: the data door (generate, cancel, tokenize)
// and the admin door. Checks and tokenizes clients' messages, and gives requests a key and a
// replica. Passes answers of the tree to the clients that asked.
//
// The doors keep a request's client, id and replica; its tokens and its text only pass through. Any
// fault of a message is answered. No message of a client can end this process.
//
// Pure: a turn takes messages and returns decisions, without clock or socket.
// Thread:  the loop thread only.
// Bounded: by outbox.h, admin.h, door_requests.h and text_calls.h.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "bus/socket.h"
#include "messages/calls.h"
#include "messages/generation.h"
#include "messages/greeting.h"
#include "messages/status.h"
#include "text/tokenizer.h"
#include "tokenizer_proc/admin.h"
#include "tokenizer_proc/door_requests.h"
#include "tokenizer_proc/outbox.h"
#include "tokenizer_proc/replica_hellos.h"
#include "tokenizer_proc/replica_outbox.h"
#include "tokenizer_proc/text_calls.h"
#include "tokenizer_proc/text_worker.h"
#include "tokenizer_proc/tree_identity.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// Facts: the messages since the last turn, and the only time that the turn sees.
struct DoorsInput {
    TimePoint now{};
    // Fresh random bits, for ids and seeds.
    std::array<std::uint64_t, 2> entropy{};
    // Messages of the last turn that could not be sent, in order. After a message failed, later
    // ones for the same receiver were not tried.
    std::vector<UnsentToClient> unsent_to_clients{};
    std::vector<ToReplica> unsent_to_replicas{};
    std::vector<bus::Received> from_tree{};  // from the schedulers and the detokenizer
    std::vector<TextDone> texts{};           // texts from the other thread: tokenized, or refused
    // Clients' messages, or why one was refused.
    std::vector<std::pair<messages::Door, bus::Received>> from_clients{};
    // The addresses where the doors listen, and their counters, for `status`.
    std::vector<messages::ListenerStatus> listeners{};
    // If not empty, the tree is shutting down for this reason. All open calls and requests, and all
    // later messages, are answered with kUnavailable.
    std::string down_why{};
};

// Decisions, to be executed in this order.
struct DoorsOutput {
    std::vector<ServedVersion> serves{};     // Admin::Out::serves
    std::optional<Unfinished> unfinished{};  // Admin::Out::unfinished
    std::vector<ToReplica> to_replicas{};
    std::vector<ToClient> to_clients{};
    std::vector<TextJob> jobs{};           // for the other thread
    std::vector<JobId> cancelled{};        // jobs that no client waits for
    TimePoint wake_at = TimePoint::max();  // the next turn is due then even if nothing arrives
};

class Doors {
  public:
    struct Config {
        TreeIdentity identity;
        std::string server{};                // "pitstop 0.1.0"
        std::string model{};                 // name of the served model
        std::vector<std::string> aliases{};  // its other names
        std::string model_path{};            // its directory
        std::string weights_path{};  // the directory that the workers load, usually model_path
        // the version that a restart could not restore
        std::optional<messages::LostVersion> lost{};
        Restart restart{};
        ReturningAdapters::Args adapters{};  // the adapters loaded before the restart
        std::string keep_committed{};        // directory for committed versions; empty: not kept
        int num_replicas = 1;
        std::optional<TokenId> end_token{};                   // the tokenizer's own (end_token.h)
        std::shared_ptr<const ChatTemplate> chat_template{};  // null: chats are not served
        std::string tokenizer_config = "{}";                  // JSON (tokenizer_config.h)
    };
    // `tokenizer`: null if no text arrives.
    Doors(Config config, const std::shared_ptr<const text::Tokenizer>& tokenizer);

    [[nodiscard]] DoorsOutput turn(DoorsInput in);

    // Returns whether every replica has said hello, and every adapter of the previous tree is
    // loaded again or lost.
    [[nodiscard]] bool is_ready() const {
        return hellos_.is_complete() && !admin_.is_bringing_back();
    }
    // Returns whether the tree was told to end, and all open requests have ended or have used up
    // their time.
    [[nodiscard]] bool is_end_due(TimePoint now) const {
        return drain_until_ && (requests_.num_open() == 0 || now >= *drain_until_);
    }
    // Returns a description of the doors in one line.
    [[nodiscard]] std::string describe() const;

    [[nodiscard]] const Admin& admin() const { return admin_; }

  private:
    // ---- the turn ----
    void requeue(DoorsInput& in);
    void flush_outbox();
    void shut_down(const std::string& why);
    void execute(Admin::Out out);
    [[nodiscard]] DoorFacts facts() const;
    [[nodiscard]] TimePoint next_deadline() const;

    // ---- clients' messages ----
    void from_client(messages::Door door, const bus::Received& received);
    Result<> handle_message(messages::Door door, const bus::Received& received);
    void refuse(
        messages::Door door,
        const std::string& peer,
        const messages::Frames& frames,
        const Error& error
    );
    void answer_error(
        messages::Door door,
        const std::string& peer,
        const messages::Frames& frames,
        const Error& error
    );
    Result<> hello(messages::Door door, const std::string& peer, const messages::Frames& frames);
    template <class Message>
    Result<> receive(const std::string& peer, const messages::Frames& frames);
    [[nodiscard]] std::vector<std::string> peers() const;

    void text_done(TextDone done);

    // ---- the tree's messages ----
    void from_tree(const bus::Received& received);
    Result<> handle_from_tree(const messages::Frames& frames);
    Result<> greet(const messages::SchedulerHello& hello);

    [[nodiscard]] Error starting() const;

    Config config_;
    TimePoint now_{};  // time of this turn
    std::vector<messages::ListenerStatus> listeners_{};
    DoorsOutput out_{};  // output of this turn
    Outbox outbox_{};
    ReplicaOutbox replicas_;
    TextCalls texts_;
    DoorRequests requests_;
    Admin admin_;
    ReplicaHellos hellos_;
    TimePoint ready_time_{};
    TimePoint next_probe_{};
    std::optional<TimePoint> drain_until_{};  // when the tree ends; new requests are refused
    std::string down_why_{};                  // not empty: the tree is shutting down
    std::int64_t num_refused_ = 0;
};

}  // namespace pitstop::tokenizer
