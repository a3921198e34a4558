// The trainer's side of a `host` group: broadcasts over TCP to every worker of every tree that
// joined (tp_worker/groups/host_group.h has the format). For machines without NCCL.
//
//   auto group = HostBroadcast::listen({.group = "w", .num_workers = 4});
//   client->call(InitGroup{...port = group->port()}, on_reply);   // on another thread, or async
//   group->accept(10s);
//   client->call(UpdateWeights{... distributed, group "w", tensors}, on_reply);
//   group->broadcast(bytes, 10s);                            // once per tensor, or per bucket
//
// Owns: the sockets. Thread: one at a time. Every wait has a deadline; after an error the
// group is unusable.
#pragma once

#include "base/result.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pitstop {

struct HostBroadcastOptions {
    std::string group{};
    std::int64_t num_workers = 1;  // of all trees; the group's world size is one more
    std::int64_t port = 0;         // 0: any free port
    bool is_local = true;          // listens only on the loopback
};

class HostBroadcast {
  public:
    // Errors: kUnavailable (the port is in use).
    static Result<HostBroadcast> listen(const HostBroadcastOptions& options);
    HostBroadcast(HostBroadcast&& other) noexcept;
    HostBroadcast& operator=(HostBroadcast&& other) noexcept;
    ~HostBroadcast();

    [[nodiscard]] std::int64_t port() const { return port_; }

    // Waits until all workers have joined. A worker that joins wrongly (another group or size, a
    // rank that has joined) is told so and does not count. Errors: kDeadlineExceeded.
    Result<> accept(std::chrono::milliseconds timeout);
    // Sends the same bytes to every worker, all in parallel. Errors: kDeadlineExceeded,
    // kUnavailable or kAborted (a worker left, with or without a reason), naming the rank.
    Result<> broadcast(std::span<const std::byte> bytes, std::chrono::milliseconds timeout);

  private:
    struct Peer {
        int fd = -1;
        std::int64_t rank = 0;
    };
    explicit HostBroadcast(HostBroadcastOptions options) : options_(std::move(options)) {}
    void close();
    void greet(int fd, std::chrono::milliseconds timeout);
    [[nodiscard]] Error gone(const Peer& peer) const;

    HostBroadcastOptions options_{};
    int listener_ = -1;
    std::int64_t port_ = 0;
    std::uint64_t next_ = 0;
    std::vector<Peer> peers_{};
};

}  // namespace pitstop
