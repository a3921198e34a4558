// A TCP connection whose every wait has a deadline and can be cancelled.
//
// Owns: the socket. Thread: one at a time.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/patience.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pitstop::tp_worker {

class TcpStream {
  public:
    // Retries, ever more slowly, while nothing listens there: a trainer may start later.
    // Errors: kNotFound (no such host), kDeadlineExceeded, kAborted, kResourceExhausted (too many
    // names are being looked up).
    static Result<TcpStream> connect(
        const std::string& address, std::int64_t port, const Patience& patience
    );
    TcpStream(TcpStream&& other) noexcept;
    TcpStream& operator=(TcpStream&& other) noexcept;
    ~TcpStream();

    // Transfer all of the bytes. Errors: kUnavailable (the peer is gone),
    // kDeadlineExceeded, kAborted.
    Result<> read(std::span<std::byte> out, const Patience& patience);
    Result<> write(std::span<const std::byte> bytes, const Patience& patience);

    // Returns whether the peer has hung up, possibly with bytes still to be read, or the connection
    // is broken.
    [[nodiscard]] bool is_closed() const;

  private:
    explicit TcpStream(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
    Result<> wait(short events, const Patience& patience) const;

    int fd_ = -1;
    std::string peer_{};
};

}  // namespace pitstop::tp_worker
