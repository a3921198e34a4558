// One connection to a door: the socket, who answers there, and the news of its loss.
//
// Thread: one, the client's.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "bus/poller.h"
#include "bus/socket.h"
#include "messages/status.h"

#include <zmq.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace pitstop {

class Link {
  public:
    struct Args {
        std::string endpoint{};
        std::string name{};              // who the client is
        std::optional<ClientKey> key{};  // for a tcp endpoint
    };
    // Connects and greets; both may take until a tree is there.
    static Result<Link> open(zmq::context_t& context, Args args, TimePoint now);

    [[nodiscard]] Sent send(const Frames& frames) { return socket_->send(frames); }

    // The next message that is not about the greeting. A greeting refused for good is in
    // refusal().
    [[nodiscard]] std::optional<Received> receive(TimePoint now);

    // The door greeted back: requests are welcome.
    [[nodiscard]] bool is_ready() const { return is_ready_; }
    [[nodiscard]] const HelloReply& hello() const { return hello_; }
    [[nodiscard]] const std::optional<Error>& refusal() const { return refusal_; }
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

    // Whether the peer that greeted back was lost since the last call. Messages it sent before are
    // still there.
    [[nodiscard]] bool take_loss();

    // Begins again with a new socket, so that nothing that was queued for the lost peer reaches
    // its successor. If that fails (no descriptor is left) it is tried again in tend().
    void reopen(TimePoint now);

    // Greets a tree that is still starting again; begins again where nobody answers for long.
    void tend(TimePoint now);
    // When tend() has something to do next.
    [[nodiscard]] TimePoint tend_time() const { return std::min(greet_time_, reopen_time_); }

    void add_to(Poller& poller);

    // For what is still queued when the client ends.
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
    std::optional<ClientKey> key_;
    std::optional<Socket> socket_{};
    std::optional<zmq::socket_t> monitor_{};  // says when the peer is lost
    HelloReply hello_{};
    bool is_ready_ = false;
    TimePoint greet_time_ = TimePoint::max();
    TimePoint reopen_time_ = TimePoint::max();
    std::optional<Error> refusal_{};
};

}  // namespace pitstop
