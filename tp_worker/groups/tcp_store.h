// Talks to torch's TCPStore, as far as a foreign member of a process group needs it: counts itself
// in, waits for a key and reads it.
//
// Thread: one. Every call has a deadline; after an error the store is unusable.
// Source: torch/csrc/distributed/c10d/TCPStore*.cpp.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/tcp_stream.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::tp_worker {

// The query numbers of torch 1.x are one lower than those of 2.x, where VALIDATE is first.
enum class StoreVersion { kTorch1, kTorch2 };

class TcpStore {
  public:
    // Waits for a trainer that has not started its server yet. Errors: tcp_stream.h's.
    static Result<TcpStore> connect(
        const std::string& address,
        std::int64_t port,
        StoreVersion version,
        const Patience& patience
    );

    // Adds to a counter, and returns its new value. `key` is the key on the wire, where torch puts
    // "/" before a user's key.
    Result<std::int64_t> increase(
        std::string_view key, std::int64_t delta, const Patience& patience
    );
    // Returns the key's value once it exists. Errors: kTooLarge (more than bytes_max).
    Result<std::string> wait_for_value(
        std::string_view key, std::size_t bytes_max, const Patience& patience
    );

    // Returns whether the server has hung up.
    [[nodiscard]] bool is_closed() const { return stream_.is_closed(); }

  private:
    TcpStore(TcpStream stream, StoreVersion version)
        : stream_(std::move(stream)), version_(version) {}
    [[nodiscard]] char code(char torch2) const;

    TcpStream stream_;
    StoreVersion version_;
};

}  // namespace pitstop::tp_worker
