// The listening socket, its connections, and the loop with its descriptors.
//
// Owns:    every connection, and the event loop.
// Thread:  one for run() and all that it calls; any for post().
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
    // REQUIRES: `context` and `router` outlive the server.
    Server(ServerContext& context, const Router& router);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Binds and listens. Errors: kInvalidArgument (no such address), kAlreadyExists (in
    // use), kPermissionDenied.
    Result<> listen();
    // Returns "http://127.0.0.1:30000". REQUIRES: listen() succeeded.
    [[nodiscard]] std::string url() const;

    // Calls `on_readable` in the loop whenever `fd` is readable, until `on_readable` returns false.
    // The caller continues to own `fd`.
    void watch(int fd, std::function<bool()> on_readable);
    // Runs `action` in the loop.
    void post(std::function<void()> action);

    // Runs until stop() was called and every connection is closed.
    void run();
    // Accepts no more connections. Lets requests finish during the grace time, then ends them with
    // their output so far.
    void stop();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Errors: kInvalidArgument: `host` is neither localhost nor an IP address.
[[nodiscard]] Result<> check_host(const std::string& host);
// Returns whether only this machine can reach the address.
[[nodiscard]] bool is_loopback(const std::string& host);

}  // namespace pitstop::http
