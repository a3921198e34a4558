// Makes a listening socket with a bounded number of connections, to which a ZeroMQ socket is bound.
//
// ZeroMQ itself accepts every connection, and an ipc listener aborts its process if accept() finds
// no descriptor (libzmq 4.3.4, ipc_listener.cpp: EMFILE is not among the errors it expects). A
// socket monitor reports a connection only afterwards and on another thread, so it cannot bound
// anything. Hence accept4() itself decides: accept4.cpp defines that function for a whole program,
// and libzmq, which is linked dynamically, calls it. A connection over the bound is accepted,
// closed at once, and counted. Descriptors that belong to no Listener are not touched.
//
// Only a program whose sockets have bounds links accept4.cpp (pitstop_accept4). No library links
// it, so a user's program that links the client library keeps the C library's accept4.
//
// Owns:    the socket's file, and the bound. The descriptor belongs to the ZeroMQ socket.
// Thread:  any; ZeroMQ's own threads accept the connections.
// Bounded: one entry per connection; while full, one look at all entries per kSweepEvery.
#pragma once

#include "base/result.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/socket.h>

namespace pitstop::bus {

struct ListenerCounts {
    std::int64_t open = 0;            // connections now, greeted or not
    std::int64_t accepted_total = 0;  // connections accepted so far
    std::int64_t refused_total = 0;   // connections refused over the bound
    std::int64_t silent_total = 0;    // connections that ended before mark_spoken()
};

class Listener {
  public:
    // The entry of an ended connection may stay occupied for this long.
    static constexpr auto kSweepEvery = std::chrono::milliseconds(10);

    // Listens at "ipc:///path", "ipc://@name" or "tcp://address:port" with a numeric address; port
    // 0: any free port. Errors: the endpoint is not understood or is in use; no descriptor is free;
    // the program does not link pitstop_accept4.
    static Result<std::unique_ptr<Listener>> open(const std::string& endpoint, int connections_max);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // Pass this to ZMQ_USE_FD once: the ZeroMQ socket closes it.
    [[nodiscard]] int fd() const;
    // Returns the endpoint, with the port that the kernel chose.
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
    [[nodiscard]] int connections_max() const;
    [[nodiscard]] ListenerCounts counts() const;

    // Records that the connection with that descriptor finished its handshake: one of its
    // messages arrived.
    void mark_spoken(int connection);

    class Gate;  // answers accept4()

  private:
    Listener(std::shared_ptr<Gate> gate, std::string endpoint, std::string path);

    std::shared_ptr<Gate> gate_;  // shared with an accept4() call in progress
    std::string endpoint_;
    std::string path_;  // the socket's file; empty if none
};

// accept4(), except that a connection over a Listener's bound is closed: to the caller it looks
// like one whose peer gave up before the accept.
int bounded_accept4(int listening_fd, ::sockaddr* address, ::socklen_t* size, int flags);
// Called when the program starts, if bounded_accept4() is its accept4().
void note_accept4_is_bounded();

}  // namespace pitstop::bus
