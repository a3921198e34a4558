// Keeps one connection to a door: the socket, which tree answers there, and the news of its loss.
//
// Who is there is known from hello_reply alone, and a socket says when its peer is gone: nothing
// here takes silence for a death, as a tree may be slow. What was queued for a tree never reaches
// its successor: the socket goes with the tree, and messages name the tree they are for.
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

// Returns why a door would refuse them for their size, or nothing.
[[nodiscard]] std::optional<Error> problem_of_size(const messages::Frames& frames);

class Link {
  public:
    struct Args {
        std::string endpoint{};
        std::string name{};                   // says who the client is
        std::optional<bus::ClientKey> key{};  // for a tcp endpoint
    };
    // Connects and greets; both may take until a tree is there.
    static Result<Link> open(zmq::context_t& context, Args args, TimePoint now);

    // Sends a message that names the tree, or a greeting.
    [[nodiscard]] bus::Sent send(const messages::Frames& frames) { return socket_->send(frames); }

    // Returns the next message that is not about the greeting, nor about which tree this is. A
    // greeting refused for good is in refusal().
    [[nodiscard]] std::optional<bus::Received> receive(TimePoint now);

    // Tells whether the door greeted back: messages for that tree are welcome.
    [[nodiscard]] bool is_ready() const { return is_ready_; }
    // Returns why nothing may be sent. REQUIRES: !is_ready().
    [[nodiscard]] Error why_not() const;
    // Returns the tree that greeted back last; empty: none has.
    [[nodiscard]] const std::string& tree() const { return tree_; }
    [[nodiscard]] const messages::HelloReply& hello() const { return hello_; }
    [[nodiscard]] const std::optional<Error>& refusal() const { return refusal_; }
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

    // Tells whether the peer that greeted back was lost since the last call. Messages it sent
    // before are still there.
    [[nodiscard]] bool take_loss();
    // Another tree answers here than the one that greeted back: it was restarted behind a
    // connection that stands (a proxy's, or one that this socket mended by itself).
    [[nodiscard]] bool is_other_tree() const { return is_other_tree_; }

    // Begins again with a new socket, so that nothing that was queued for the lost peer reaches
    // its successor. If that fails (no descriptor is left) it is tried again in greet_or_reopen().
    void reopen(TimePoint now);

    // Greets a tree that is still starting again; begins again where nobody answers for long.
    void greet_or_reopen(TimePoint now);
    // Returns when greet_or_reopen() has something to do next.
    [[nodiscard]] TimePoint next_attempt() const { return std::min(greet_time_, reopen_time_); }

    void add_to(bus::Poller& poller);

    // Sets the time for what is still queued when the client ends.
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
    std::optional<bus::SocketMonitor> monitor_{};  // says when the peer is lost
    messages::HelloReply hello_{};
    std::string tree_{};
    bool is_ready_ = false;
    bool is_other_tree_ = false;
    std::string why_not_ready_ = "nobody has answered yet";
    TimePoint greet_time_ = TimePoint::max();
    TimePoint reopen_time_ = TimePoint::max();
    std::optional<Error> refusal_{};
};

}  // namespace pitstop
