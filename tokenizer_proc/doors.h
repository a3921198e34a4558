// The two doors of the tree, the core of tokenizer_proc: the data door (generate, cancel, tokenize)
// and the admin door. Clients' messages are checked, tokenized and given a key and a replica.
// Answers of the tree are passed to the clients that asked.
//
// A request here is its client, its id and its replica, nothing more; its tokens and text pass
// through. Any fault of a message is answered, and nothing that a client sends ends this process.
//
// Pure: a turn takes messages and returns decisions, without clock or socket.
// Thread:  the loop thread only.
// Bounded: kOpenMax requests; outbox.h, admin.h, text_call_table.h and text_worker.h bound
//          the rest.
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
#include "tokenizer_proc/conversations.h"
#include "tokenizer_proc/outbox.h"
#include "tokenizer_proc/replica_choice.h"
#include "tokenizer_proc/replica_hellos.h"
#include "tokenizer_proc/request_checks.h"
#include "tokenizer_proc/request_table.h"
#include "tokenizer_proc/text_call_table.h"
#include "tokenizer_proc/text_worker.h"
#include "tokenizer_proc/tree_identity.h"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

enum class ReplicaSocket { kRequests, kControl };

// A message for a replica. Control messages of one replica keep their order.
struct ToReplica {
    ReplicaId replica{};
    ReplicaSocket socket = ReplicaSocket::kControl;
    messages::Frames frames{};
    RequestKey key{};  // kRequests: the request's key
};

// Facts: the messages since the last turn, and the time, which is the turn's only clock.
struct DoorsInput {
    TimePoint now{};
    // Fresh random bits, for ids and seeds.
    std::array<std::uint64_t, 2> entropy{};
    // Messages of the last turn that could not be sent, in their order. After a failed message,
    // later ones for the same receiver were not tried.
    std::vector<UnsentToClient> unsent_to_clients{};
    std::vector<ToReplica> unsent_to_replicas{};
    std::vector<bus::Received> from_tree{};  // from the schedulers and the detokenizer
    std::vector<TextDone> texts{};           // texts from the other thread, tokenized or refused
    // Clients' messages, or why one was refused.
    std::vector<std::pair<messages::Door, bus::Received>> from_clients{};
    // Where the doors listen, and their counters, for `status`.
    std::vector<messages::ListenerStatus> listeners{};
    // If not empty, the tree is shutting down for this reason. Everything open is answered with
    // kUnavailable, and so are later messages.
    std::string down_why{};
};

// Decisions, to be carried out in this order.
struct DoorsOutput {
    std::vector<ServedVersion> serves{};     // Admin::Out::serves
    std::optional<Unfinished> unfinished{};  // Admin::Out::unfinished
    std::vector<ToReplica> to_replicas{};
    std::vector<ToClient> to_clients{};
    std::vector<TextJob> jobs{};           // for the other thread
    std::vector<JobId> cancelled{};        // jobs that no client waits for
    TimePoint wake_at = TimePoint::max();  // a turn is due then even if nothing arrives
};

class Doors {
  public:
    struct Config {
        TreeIdentity identity;
        std::string server{};        // "pitstop 0.1.0"
        std::string model{};         // name of the served model
        std::string model_path{};    // its directory
        std::string weights_path{};  // the checkpoint that the workers load, usually the same
        // the version that a restart could not restore
        std::optional<messages::LostVersion> lost{};
        Restart restart{};
        std::vector<messages::LostAdapter> adapters{};  // loaded before the restart
        std::string keep_committed{};  // the directory for committed versions; empty: none
        int num_replicas = 1;
        std::optional<TokenId> end_token{};                   // the tokenizer's (end_token.h)
        std::shared_ptr<const ChatTemplate> chat_template{};  // null: no chats
        std::string tokenizer_config = "{}";                  // JSON; tokenizer_config.h
    };
    static constexpr std::size_t kOpenMax = std::size_t{1} << 18;

    // `tokenizer` may be null if no text arrives.
    Doors(Config config, std::shared_ptr<const text::Tokenizer> tokenizer);

    [[nodiscard]] DoorsOutput turn(DoorsInput in);

    // Returns whether every replica has said hello, and the adapters of the tree before are back
    // or lost.
    [[nodiscard]] bool is_ready() const {
        return hellos_.is_complete() && !admin_.is_bringing_back();
    }
    // Returns whether the tree was told to end, and all open requests have ended or used
    // up their time.
    [[nodiscard]] bool is_end_due(TimePoint now) const {
        return drain_until_ && (requests_.size() == 0 || now >= *drain_until_);
    }
    // Returns a description of the doors in one line.
    [[nodiscard]] std::string describe() const;

    [[nodiscard]] const Admin& admin() const { return admin_; }

  private:
    // ---- the turn ----
    void take_back(DoorsInput& in);
    void send_to_replicas();
    void flush_outbox();
    void shut_down(const std::string& why);
    void carry_out(Admin::Out out);
    [[nodiscard]] Admin::DoorFacts facts() const;
    [[nodiscard]] TimePoint next_deadline() const;
    [[nodiscard]] std::uint64_t random();

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
    Result<> handle(const std::string& peer, messages::Generate message);
    Result<> handle(const std::string& peer, const messages::Cancel& message);
    Result<> handle(const std::string& peer, messages::OpenConversation message);
    Result<> handle(const std::string& peer, const messages::CloseConversation& message);
    [[nodiscard]] std::vector<std::string> peers() const;

    // ---- texts (text_calls.cpp) ----
    Result<> handle(const std::string& peer, messages::Tokenize message);
    Result<> handle(const std::string& peer, messages::RenderChat message);
    Result<> handle(const std::string& peer, const messages::DescribeTokenizer& message);
    Result<> start_call(const std::string& peer, CallId call, TextJob job);
    void start_job(TextJob job);
    void job_done(TextDone done);
    [[nodiscard]] static std::vector<std::string> client_path(
        const std::string& peer, std::vector<std::string> names
    );
    void cancel_calls(const std::string& peer, const std::vector<CallId>& calls);
    void answer(const TextCall& call, const Error& error);

    // ---- requests (requests.cpp) ----
    Result<> dispatch(
        OpenRequest& request, messages::Generate message, std::vector<TokenId> prompt
    );
    void close(OpenRequest& request);
    void abort(const std::vector<OpenRequest*>& requests, const std::string& message);
    Admin::Aborted abort_ids(const messages::Abort& call);
    void end_conversations();
    void end_in_tree(
        std::vector<RequestKey> keys,
        ReplicaId replica,
        messages::EndCause cause,
        std::string message
    );
    void lose_clients();
    void refuse_request(OpenRequest& request, const Error& error);
    void fail(OpenRequest& request, const Error& error);

    // ---- the tree's messages ----
    void from_tree(const bus::Received& received);
    Result<> handle_from_tree(const messages::Frames& frames);
    Result<> greet(const messages::SchedulerHello& hello);
    void deliver(messages::TextBatch batch);
    void to_control(ReplicaId replica, messages::Frames frames);

    [[nodiscard]] Error starting() const;
    [[nodiscard]] std::string random_rid();

    Config config_;
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    TimePoint now_{};  // time of this turn
    std::array<std::uint64_t, 2> entropy_{};
    std::uint64_t num_drawn_ = 0;  // numbers drawn from the entropy
    std::vector<messages::ListenerStatus> listeners_{};
    DoorsOutput out_{};  // output of this turn
    Outbox outbox_{};
    Admin admin_;
    RequestTable requests_{};
    TextCallTable text_calls_{};
    Conversations conversations_;
    JobId next_job_{1};
    RequestKey next_key_{1};
    ReplicaHellos hellos_;
    std::optional<RequestChecks> checks_{};  // once ready
    std::optional<ReplicaChoice> choice_{};  // once ready
    // Control messages for the replicas, in order: those that found a queue full, then this turn's.
    // Bounded by open requests and open calls.
    std::deque<ToReplica> control_{};
    std::vector<OpenId> ended_{};  // since the last flush, which sends their last chunks
    TimePoint ready_time_{};
    TimePoint next_probe_{};
    std::optional<TimePoint> drain_until_{};  // then the tree ends; new requests are refused
    std::string down_why_{};                  // not empty while the tree is shutting down
    std::int64_t num_refused_ = 0;
};

}  // namespace pitstop::tokenizer
