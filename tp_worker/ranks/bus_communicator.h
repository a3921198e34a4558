// A Communicator for ranks on one or several machines that exchange data over the bus, through
// their scheduler (messages/ranks.h). The bus is fast enough for data at the start and around
// steps. For tensors the bus is slow: only ranks on the CPUs of several machines use it for them.
//
// If the scheduler is on another machine, no launcher here learns that the replica has to end:
// has_ended() returns whether the scheduler said so.
//
// Owns:    the connection. Waits: for peers, whom the scheduler names if they are late; for the
//          scheduler itself a little longer.
// Bounded: a part of each rank, of messages::kRankPartBytesMax.
#pragma once

#include "bus/curve_keys.h"
#include "bus/poller.h"
#include "bus/socket.h"
#include "bus/socket_monitor.h"
#include "messages/ranks.h"
#include "tp_worker/ranks/communicator.h"

#include <zmq.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

struct BusCommunicatorArgs {
    std::string endpoint{};               // where the scheduler's workers connect
    std::optional<bus::ClientKey> key{};  // set if the scheduler is on another machine
    messages::RankJoin join{};            // valid
    Duration join_limit{};                // for reaching the scheduler
    Duration peer_limit{};                // for another rank to join an operation
};

class BusCommunicator final : public Communicator {
  public:
    // Returns when the scheduler has accepted this rank; other ranks need not exist yet.
    // Errors: the scheduler's (scheduler_proc/rank_meeting.h); kPermissionDenied if it refuses
    // this key; kDeadlineExceeded without an answer, or with an answer from a key that this rank
    // does not trust.
    static Result<std::unique_ptr<BusCommunicator>> join(
        zmq::context_t& context, BusCommunicatorArgs args
    );

    [[nodiscard]] Rank rank() const override { return args_.join.rank; }
    [[nodiscard]] int size() const override { return args_.join.tp; }
    [[nodiscard]] int num_on_machine() const override { return args_.join.tp / args_.join.nodes; }

    Result<> all_reduce_sum(std::span<float> data) override;
    Result<> gather_columns(View2<const float> part, View2<float> whole) override;
    Result<> broadcast(std::span<std::byte> data) override;
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
    Result<> barrier() override { return barrier_within(args_.peer_limit); }
    Result<> barrier_within(Duration limit) override;

    // Adds this object's sockets to a loop's poller. REQUIRES: this object does not move.
    void add_to(bus::Poller& poller);
    // Returns whether the replica was told to end. Errors: why it cannot continue, or that the
    // scheduler is gone.
    [[nodiscard]] Result<bool> has_ended();
    // Sends this rank's last error to the scheduler, which reports it to all ranks.
    void say_why(const Error& error);

  private:
    using Bytes = std::vector<std::uint8_t>;
    BusCommunicator(BusCommunicatorArgs args, bus::Socket socket, bus::SocketMonitor monitor)
        : args_(std::move(args)), socket_(std::move(socket)), monitor_(std::move(monitor)) {}

    Result<> wait_for_place();
    // Returns all nonempty parts, in rank order; `num_bytes` is the size of each.
    Result<Bytes> meet(
        std::string_view what,
        std::size_t num_bytes,
        std::span<const std::byte> mine,
        Duration limit
    );
    Result<messages::RankMet> wait_for_parts(std::string_view what, Duration limit);
    // Returns the next answer. Records a message that ends the replica.
    std::optional<messages::Frames> take_answer();
    void note_events();
    void note_end(Error error);
    [[nodiscard]] Error error_of_silence(Duration limit) const;

    BusCommunicatorArgs args_;
    bus::Socket socket_;
    bus::SocketMonitor monitor_;
    std::int64_t meeting_ = 0;  // the latest meeting asked for
    bool is_placed_ = false;
    bool is_asked_to_end_ = false;
    std::optional<Error> end_{};  // no further meeting takes place
};

}  // namespace pitstop::tp_worker
