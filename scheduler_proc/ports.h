// The scheduler's sockets: received messages become a TurnInput, a TurnOutput becomes messages.
//
//   requests  PULL    binds     tokenized requests and ends, from tokenizer_proc
//   control   PULL    binds     control, from tokenizer_proc; drained before requests
//   workers   ROUTER  binds     plans out, results in; a worker names its rank in its hello. Ranks
//                               also join here (rank_meeting.h); ranks of other machines connect to
//                               a TCP door that accepts the nodes' keys (bus/curve_keys.h)
//   tokenizer, detokenizer  PUSH  connect
//
// Unreadable messages are counted and dropped, and logged up to a limit. A refused worker on
// another machine is told why. A refused local worker is not: the log has the reason.
//
// Owns:    the sockets.
// Thread:  the loop thread only. Nothing here waits.
// Bounded: kMessagesPerTurnMax per socket and turn; kHeldMax messages for a slow receiver.
#pragma once

#include "bus/key_guard.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "bus/socket_monitor.h"
#include "scheduler_proc/rank_meeting.h"
#include "scheduler_proc/scheduler.h"

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class Ports {
  public:
    static constexpr std::size_t kHeldMax = 4096;
    // The first refusals are logged, up to this many; later ones whenever their number doubles.
    static constexpr std::int64_t kRefusalsLoggedMax = 1000;

    struct Args {
        ReplicaId replica{};
        RankMeeting::Args ranks{};
        std::string node_door{};  // "HOST:PORT" for ranks of other machines; empty: no such door
        std::string door_keys{};  // a directory made by keygen
    };
    // Errors: a socket cannot be made, or a key cannot be read.
    static Result<Ports> open(
        zmq::context_t& context, const bus::RunDir& run_dir, const Args& args
    );
    // Returns where ranks of other machines connect: "tcp://..."; empty if there is no such door.
    [[nodiscard]] std::string node_endpoint() const;

    // Adds the sockets to wait for. REQUIRES: this Ports does not move.
    void add_to(bus::Poller& poller);

    // Receives all waiting messages.
    [[nodiscard]] TurnInput receive();

    // Returns why the replica cannot continue: a rank of another machine is gone. Returns nothing
    // while it can.
    [[nodiscard]] const std::optional<Error>& loss() const { return meeting_.loss(); }
    // Returns when receive() has work even without a message.
    [[nodiscard]] std::optional<TimePoint> deadline() const { return meeting_.deadline(); }
    // Tells ranks that the replica ends (RankMeeting::end).
    void end(const messages::Verdict& verdict);

    // Sends all of `out`, in order. Errors: a worker does not read (kUnavailable); the tokenizer or
    // the detokenizer has not read for kHeldMax messages (kResourceExhausted).
    Result<> send(TurnOutput out);
    // Returns whether messages wait for a slow receiver: call send({}) again soon.
    [[nodiscard]] bool has_held() const {
        return !to_tokenizer_.empty() || !to_detokenizer_.empty();
    }

  private:
    Ports(
        bus::Socket requests,
        bus::Socket control,
        bus::Socket workers,
        bus::Socket tokenizer,
        bus::Socket detokenizer,
        bus::SocketMonitor worker_ends,
        const RankMeeting::Args& ranks
    )
        : requests_(std::move(requests)),
          control_(std::move(control)),
          workers_(std::move(workers)),
          tokenizer_(std::move(tokenizer)),
          detokenizer_(std::move(detokenizer)),
          worker_ends_(std::move(worker_ends)),
          meeting_(ranks),
          num_nodes_(ranks.nodes),
          peers_(static_cast<std::size_t>(ranks.tp)) {}

    Result<> open_node_door(
        zmq::context_t& context, const Args& args, const bus::SocketLimits& limits
    );
    void receive_from(bus::Socket& socket, TurnInput& in);
    void receive_from_workers(TurnInput& in);
    void greet(const bus::Received& received, TurnInput& in);
    // Handles messages of the ranks' meetings. Returns false for any other message.
    bool take_for_meeting(const bus::Received& received, TurnInput& in);
    Result<> handle_join(const bus::Received& received, messages::RankJoin join);
    void take_error(const bus::Received& received, Rank rank, TurnInput& in);
    void take_from_peer(const bus::Received& received, TurnInput& in);
    // Refuses a message of a worker that has no place; a worker of another machine is told why.
    void refuse_worker(const bus::Received& received, const Error& error, TurnInput& in);
    // Marks the sender's connection as one that passed the door's handshake and was accepted.
    void note_spoken(const bus::Received& received);
    void report_to(messages::ReplicaStatus& status);
    void count_refused_keys();
    void send_letters();
    // Returns the identities of ranks whose connections have ended.
    std::vector<std::string> take_ended();
    void lose(Rank rank, std::string_view why);
    void refuse(std::string_view from, const Error& error, TurnInput& in);
    Result<> send_to_workers(const ToWorkers& message);
    static Result<> flush(
        bus::Socket& socket, std::deque<messages::Frames>& held, std::string_view name
    );

    bus::Socket requests_;
    bus::Socket control_;
    bus::Socket workers_;
    bus::Socket tokenizer_;
    bus::Socket detokenizer_;
    std::optional<bus::KeyGuard> guard_{};  // guards the nodes' door
    bus::SocketMonitor worker_ends_;
    RankMeeting meeting_;
    int num_nodes_ = 1;
    std::int64_t num_keys_refused_ = 0;  // refused keys that were logged or skipped
    std::int64_t num_refused_ = 0;       // messages
    std::vector<std::string> peers_;     // by rank: the worker's identity; empty before its hello
    std::deque<messages::Frames> to_tokenizer_{};
    std::deque<messages::Frames> to_detokenizer_{};
};

}  // namespace pitstop::scheduler
