// Makes a listening socket that takes a bounded number of connections; a ZeroMQ socket is bound to
// it.
//
// ZeroMQ itself takes whatever comes, and an ipc listener aborts its process where accept() finds
// no descriptor (libzmq 4.3.4, ipc_listener.cpp: EMFILE is not among the errors it expects). A
// socket monitor tells of a connection only afterwards and on another thread, so that it bounds
// nothing. Hence the decision is made in accept4() itself: listener.cpp defines that function for
// the whole program, and libzmq, which is linked dynamically, calls it. A connection over the bound
// is taken and closed at once, and counted. Descriptors that belong to no Listener are not touched.
//
// Owns:    the socket's file, and the bound. The descriptor belongs to the ZeroMQ socket.
// Thread:  any; ZeroMQ's own threads take the connections.
// Bounded: one entry per connection; a look at all of them once per kSweepEvery while it is full.
#pragma once

#include "base/result.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace pitstop::bus {

struct ListenerCounts {
    std::int64_t open = 0;            // connections now, greeted or not
    std::int64_t accepted_total = 0;  // those that were taken
    std::int64_t refused_total = 0;   // those that were one too many
    std::int64_t silent_total = 0;    // those that ended before mark_spoken()
};

class Listener {
  public:
    // The place of a connection that has ended may stay taken for this long.
    static constexpr auto kSweepEvery = std::chrono::milliseconds(10);

    // Listens at "ipc:///path", "ipc://@name" or "tcp://address:port", a numeric address; port 0:
    // any free one. Errors: the endpoint is not understood, or is in use; no descriptor is left.
    static Result<std::unique_ptr<Listener>> open(const std::string& endpoint, int connections_max);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // Pass this to ZMQ_USE_FD once: the ZeroMQ socket closes it.
    [[nodiscard]] int fd() const;
    // Returns the endpoint that is listened at, with the port that was found.
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
    [[nodiscard]] int connections_max() const;
    [[nodiscard]] ListenerCounts counts() const;

    // Notes that the connection of that descriptor came through its handshake: a message of it is
    // here.
    void mark_spoken(int connection);

    class Gate;  // answers accept4()

  private:
    Listener(std::shared_ptr<Gate> gate, std::string endpoint, std::string path);

    std::shared_ptr<Gate> gate_;  // shared with an accept4() that is under way
    std::string endpoint_;
    std::string path_;  // the socket's file; empty: none
};

}  // namespace pitstop::bus
