// One connection to a door: the socket, which tree answers there, and the notice of its loss.
//
// A tree's hello_reply identifies it, and the socket's monitor reports its loss. Silence never
// counts as a death, because a tree may be slow. Messages queued for a tree never reach its
// successor: the socket is closed with the tree, and messages name the tree they are meant for.
//
// Thread: one, the client's.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "bus/poller.h"
#include "bus/socket.h"
#include "bus/socket_monitor.h"
#include "messages/greeting.h"

#include <zmq.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace pitstop {

// Returns why a door would refuse these frames for their size, or nothing.
[[nodiscard]] std::optional<Error> problem_of_size(const messages::Frames& frames);

class Link {
  public:
    struct Args {
        std::string endpoint{};
        std::string name{};                   // identifies the client
        std::optional<bus::ClientKey> key{};  // for a tcp endpoint
    };
    // Connects and greets; both may take until a tree starts.
    static Result<Link> open(zmq::context_t& context, Args args, TimePoint now);

    // Sends a message that names the tree, or a greeting.
    [[nodiscard]] bus::Sent send(const messages::Frames& frames) { return socket_->send(frames); }

    // Returns the next message that does not concern the greeting or the tree's identity. A final
    // refusal of the greeting is in refusal().
    [[nodiscard]] std::optional<bus::Received> receive(TimePoint now);

    // Returns whether the door greeted back: messages for that tree may be sent.
    [[nodiscard]] bool is_ready() const { return is_ready_; }
    // Returns why nothing may be sent. REQUIRES: !is_ready().
    [[nodiscard]] Error why_not() const;
    // Returns the tree that greeted back last; empty if none has.
    [[nodiscard]] const std::string& tree() const { return tree_; }
    [[nodiscard]] const messages::HelloReply& hello() const { return hello_; }
    [[nodiscard]] const std::optional<Error>& refusal() const { return refusal_; }
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

    // Returns whether the peer that greeted back was lost since the last call. Messages it sent
    // before can still be received.
    [[nodiscard]] bool take_loss();
    // Returns whether another tree than the greeted one answers here: the tree was restarted behind
    // a connection that stayed open (a proxy's, or one that this socket repaired).
    [[nodiscard]] bool is_other_tree() const { return is_other_tree_; }

    // Starts over with a new socket, so that nothing queued for the lost peer reaches its
    // successor. If that fails (no descriptor is free), greet_or_reopen() tries again.
    void reopen(TimePoint now);

    // Greets again while the tree starts; reopens the socket after a long time without an answer.
    void greet_or_reopen(TimePoint now);
    // Returns when greet_or_reopen() has work next.
    [[nodiscard]] TimePoint next_attempt() const { return std::min(greet_time_, reopen_time_); }

    void add_to(bus::Poller& poller);

    // Sets the time for queued messages when the client ends.
    void set_linger_ms(int linger_ms) { socket_->set_linger_ms(linger_ms); }

  private:
    Link(zmq::context_t& context, Args args)
        : context_(&context),
          endpoint_(std::move(args.endpoint)),
          name_(std::move(args.name)),
          key_(std::move(args.key)) {}
    Result<> connect(TimePoint now);

    zmq::context_t* context_;
    std::string endpoint_;
    std::string name_;
    std::optional<bus::ClientKey> key_;
    std::optional<bus::Socket> socket_{};
    std::optional<bus::SocketMonitor> monitor_{};  // reports when the peer is lost
    messages::HelloReply hello_{};
    std::string tree_{};
    bool is_ready_ = false;
    bool is_other_tree_ = false;
    std::string why_not_ready_ = "no answer has arrived yet";
    TimePoint greet_time_ = TimePoint::max();
    TimePoint reopen_time_ = TimePoint::max();
    std::optional<Error> refusal_{};
};

}  // namespace pitstop
