// The scheduler's sockets: messages in become a TurnInput, a TurnOutput becomes messages.
//
//   requests  PULL    binds     tokenized requests and ends, from tokenizer_proc
//   control   PULL    binds     control, from tokenizer_proc; drained before requests
//   workers   ROUTER  binds     plans out, results in; a worker names its rank in its hello
//   tokenizer, detokenizer  PUSH  connect
//
// What cannot be read is counted, logged and dropped: there is nobody to answer.
//
// Owns:    the sockets.
// Thread:  the loop thread only. Nothing here waits.
// Bounded: kMessagesPerTurnMax per socket and turn; kHeldMax messages to a receiver that is slow.
#pragma once

#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "scheduler_proc/scheduler.h"

#include <deque>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class Ports {
  public:
    static constexpr std::size_t kHeldMax = 4096;

    // Errors: a socket cannot be made.
    static Result<Ports> open(
        zmq::context_t& context, const bus::RunDir& run_dir, ReplicaId replica, int tp
    );

    // The sockets to wait for. REQUIRES: this Ports stays where it is.
    void add_to(bus::Poller& poller);

    // Takes what is there.
    [[nodiscard]] TurnInput receive();

    // Sends everything, in order. Errors: a worker does not read (kUnavailable); the tokenizer or
    // the detokenizer has not read for kHeldMax messages (kResourceExhausted).
    Result<> send(TurnOutput out);
    // Returns whether a slow receiver still has to be sent something: call send({}) again soon.
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
        int tp
    )
        : requests_(std::move(requests)),
          control_(std::move(control)),
          workers_(std::move(workers)),
          tokenizer_(std::move(tokenizer)),
          detokenizer_(std::move(detokenizer)),
          peers_(static_cast<std::size_t>(tp)) {}

    void receive_from(bus::Socket& socket, TurnInput& in);
    void receive_from_workers(TurnInput& in);
    void greet(const bus::Received& received, TurnInput& in);
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
    std::vector<std::string> peers_;  // by rank: the worker's identity; empty before its hello
    std::deque<messages::Frames> to_tokenizer_{};
    std::deque<messages::Frames> to_detokenizer_{};
};

}  // namespace pitstop::scheduler
