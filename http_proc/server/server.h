// The listening socket, its connections, and the loop's descriptors.
//
// Owns:    every connection, and the event loop.
// Thread:  one: run() and all that it calls; post() from any.
// Bounded: by ServerLimits. A connection over the limit is answered with 503 and closed.
#pragma once

#include "base/result.h"
#include "http_proc/server/router.h"
#include "http_proc/server/server_context.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace pitstop::http {

class Server {
  public:
    // REQUIRES: both outlive the server.
    Server(ServerContext& context, const Router& router);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Binds and listens. Errors: kInvalidArgument (no such address), kAlreadyExists (in
    // use), kPermissionDenied.
    Result<> listen();
    // Returns "http://127.0.0.1:30000". REQUIRES: listen() succeeded.
    [[nodiscard]] std::string url() const;

    // Calls `on_readable` in the loop whenever `fd` is readable, until it returns false. The caller
    // keeps owning `fd`.
    void watch(int fd, std::function<bool()> on_readable);
    // Runs `action` in the loop.
    void post(std::function<void()> action);

    // Runs until stop() was called and every connection is closed.
    void run();
    // Accepts no more connections, lets requests finish for the grace time, then ends them with
    // their output so far.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Errors: kInvalidArgument: neither localhost nor an IP address.
[[nodiscard]] Result<> check_host(const std::string& host);
// Returns whether only this machine can reach an address.
[[nodiscard]] bool is_loopback(const std::string& host);

}  // namespace pitstop::http
