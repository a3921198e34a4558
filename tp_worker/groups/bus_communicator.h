// This is a Communicator for ranks that meet over the bus, at their scheduler (messages/ranks.h),
// from one machine or from several. All that it carries goes through the scheduler's process:
// enough for what ranks tell each other at the start and around steps, and slow for tensors, which
// go this way where ranks of several machines compute on CPUs.
//
// Where the scheduler is on another machine there is no launcher here that knows of the replica's
// end: has_ended() tells.
//
// Owns:    the connection. Waits: for the peers, whom the scheduler names; for the scheduler itself
//          a little longer.
// Bounded: a part of each rank, of messages::kRankPartBytesMax.
#pragma once

#include "bus/curve_keys.h"
#include "bus/poller.h"
#include "bus/socket.h"
#include "bus/socket_monitor.h"
#include "messages/ranks.h"
#include "tp_worker/groups/communicator.h"

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
    std::string endpoint{};               // where the scheduler's workers come in
    std::optional<bus::ClientKey> key{};  // the scheduler is on another machine
    messages::RankJoin join{};            // valid
    Duration join_limit{};                // until the scheduler must be there
    Duration peer_limit{};                // until a rank must come to an operation
};

class BusCommunicator final : public Communicator {
  public:
    // Returns when the scheduler has taken this rank; the others need not be there. Errors: the
    // scheduler's (scheduler_proc/rank_meeting.h); kPermissionDenied, it does not let this key in;
    // kDeadlineExceeded, nobody answered there, or somebody whom this key does not trust.
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

    // Adds what a loop waits for besides. REQUIRES: this stays where it is.
    void add_to(bus::Poller& poller);
    // Returns whether the replica was asked to end. Errors: why it cannot go on, or that the
    // scheduler is gone.
    [[nodiscard]] Result<bool> has_ended();
    // Sends this rank's last words: the scheduler tells everybody.
    void say_why(const Error& error);

  private:
    using Bytes = std::vector<std::uint8_t>;
    BusCommunicator(BusCommunicatorArgs args, bus::Socket socket, bus::SocketMonitor monitor)
        : args_(std::move(args)), socket_(std::move(socket)), monitor_(std::move(monitor)) {}

    Result<> wait_for_place();
    // Returns all parts that are not empty, in rank order; `num_bytes` is the size of each.
    Result<Bytes> meet(
        std::string_view what,
        std::size_t num_bytes,
        std::span<const std::byte> mine,
        Duration limit
    );
    Result<messages::RankMet> wait_for_parts(std::string_view what, Duration limit);
    // Returns the next message that answers something; notes an end on the way.
    std::optional<messages::Frames> take_answer();
    void note_events();
    void note_end(Error error);
    [[nodiscard]] Error error_of_silence(Duration limit) const;

    BusCommunicatorArgs args_;
    bus::Socket socket_;
    bus::SocketMonitor monitor_;
    std::int64_t meeting_ = 0;  // the last one that was asked for
    bool is_placed_ = false;
    bool is_asked_to_end_ = false;
    std::optional<Error> end_{};  // no meeting takes place any more
};

}  // namespace pitstop::tp_worker
