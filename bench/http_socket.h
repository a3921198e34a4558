// Opens a socket to an HTTP server, and reads one whole answer over it.
//
// Owns: the descriptor.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::bench {

// http_address_of() finds where the HTTP server of the tree in `run_dir` listens, by its tree.json.
// Errors: kNotFound.
struct HttpAddress {
    std::string host{};
    std::uint16_t port = 0;
};
[[nodiscard]] Result<HttpAddress> http_address_of(const std::string& run_dir);

class HttpSocket {
  public:
    HttpSocket() = default;
    HttpSocket(HttpSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    HttpSocket& operator=(HttpSocket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~HttpSocket();

    // Makes a blocking connection without Nagle's delay.
    static Result<HttpSocket> connect(const HttpAddress& address);
    [[nodiscard]] int fd() const { return fd_; }

    // Sends all bytes. Errors: kUnavailable.
    Result<> send(std::string_view bytes);
    // Sends a request and waits for its answer, which must have a Content-Length. Returns its body.
    // Errors: kInternal (any status but 200, with the body), kUnavailable (closed).
    Result<std::string> call(std::string_view request);

  private:
    int fd_ = -1;
};

// Writes "POST /path HTTP/1.1" with a JSON body, or without one.
[[nodiscard]] std::string http_request(
    std::string_view method, std::string_view path, std::string_view body = {}
);

}  // namespace pitstop::bench
