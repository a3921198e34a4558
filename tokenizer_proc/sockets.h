// Every socket of tokenizer_proc: the doors, the inbox for the tree's messages, and the sockets to
// each replica.
//
// Owns:    the sockets; the context must outlive them.
// Thread:  the loop thread only.
// Bounded: all connections of the doors together stay below the limit of descriptors.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "bus/key_guard.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "messages/calls.h"
#include "messages/greeting.h"
#include "messages/status.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

std::string_view name_of(messages::Door door);

// The addresses where the doors listen for other machines; none by default.
struct TcpDoors {
    std::string data{};   // HOST:PORT, a numeric address; empty: no such door
    std::string admin{};  // the same for the admin door
    std::string keys{};   // the directory of keys (bus/curve_keys.h)

    [[nodiscard]] bool has_any() const { return !data.empty() || !admin.empty(); }
};
// Returns what is wrong with the flags, before any socket is opened.
Result<> check(const TcpDoors& doors);

class Sockets {
  public:
    // Errors: an endpoint cannot be bound, a key file is invalid, or there are too few descriptors.
    static Result<Sockets> open(
        zmq::context_t& context, const bus::RunDir& run_dir, int num_replicas, const TcpDoors& tcp
    );

    [[nodiscard]] bus::Socket& door(messages::Door door) {
        return door == messages::Door::kData ? data_ : admin_;
    }
    [[nodiscard]] bus::Socket& inbox() { return inbox_; }
    [[nodiscard]] bus::Socket& requests(ReplicaId replica) { return requests_[index(replica)]; }
    [[nodiscard]] bus::Socket& control(ReplicaId replica) { return control_[index(replica)]; }

    void add_to(bus::Poller& poller);

    // Returns the next message at a door, or nothing. Refuses a message from a client whose key is
    // no longer on the list.
    std::optional<bus::Received> receive(messages::Door door, TimePoint now);
    // Tells ZeroMQ which of the offered keys are admitted.
    void answer_keys();

    [[nodiscard]] std::vector<messages::ListenerStatus> describe() const;
    // Returns each TCP door with its endpoint.
    [[nodiscard]] std::vector<std::pair<messages::Door, std::string>> tcp_endpoints() const;

    void set_linger_ms(int linger_ms);

  private:
    Sockets(bus::Socket data, bus::Socket admin, bus::Socket inbox)
        : data_(std::move(data)), admin_(std::move(admin)), inbox_(std::move(inbox)) {}
    static std::size_t index(ReplicaId replica) { return static_cast<std::size_t>(raw(replica)); }
    [[nodiscard]] const bus::Socket& door(messages::Door door) const {
        return door == messages::Door::kData ? data_ : admin_;
    }
    Result<> open_tcp(
        zmq::context_t& context,
        const TcpDoors& tcp,
        const bus::SocketLimits& data,
        const bus::SocketLimits& admin
    );

    std::optional<bus::KeyGuard> guard_{};  // guards the TCP doors
    bus::Socket data_;
    bus::Socket admin_;
    bus::Socket inbox_;
    std::vector<bus::Socket> requests_{};  // by replica
    std::vector<bus::Socket> control_{};   // by replica
};

}  // namespace pitstop::tokenizer
