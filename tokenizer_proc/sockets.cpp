#include "tokenizer_proc/sockets.h"

#include "base/descriptors.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {
namespace {

// Returns the number of descriptors needed, except for the doors' connections.
constexpr int own_descriptors(int num_replicas) { return 36 + 6 * num_replicas; }
// The fewest connections of a door: with fewer, it could not accept its front end and another
// client that asks for the status.
constexpr int kDoorConnectionsMin = 8;

// The connections of each door: as many as the door may have, within the descriptors that are left.
// Each door has a reserve that no other door can use.
struct DoorLimits {
    bus::SocketLimits data = bus::kDoorLimits;
    bus::SocketLimits admin = bus::kDoorLimits;
    bus::SocketLimits tcp_data = bus::kTcpDoorLimits;
    bus::SocketLimits tcp_admin = bus::kTcpDoorLimits;

    static Result<DoorLimits> within_descriptors(int num_replicas, bool has_tcp);
};

Result<DoorLimits> DoorLimits::within_descriptors(int num_replicas, bool has_tcp) {
    constexpr int kAdminConnectionsMax = 256;
    constexpr int kTcpAdminConnectionsMax = 64;
    const int own = own_descriptors(num_replicas);
    const int min = has_tcp ? 2 * kDoorConnectionsMin : kDoorConnectionsMin;
    ASSIGN_OR_RETURN(const int num, raise_descriptor_limit(own + min));
    const int share = has_tcp ? (num - own) / 2 : num - own;  // for each kind of door: local, TCP
    DoorLimits limits;
    limits.admin.connections_max = std::min(kAdminConnectionsMax, share / 4);
    limits.data.connections_max =
        std::min(bus::kDoorLimits.connections_max, share - limits.admin.connections_max);
    limits.tcp_admin.connections_max = std::min(kTcpAdminConnectionsMax, share / 4);
    limits.tcp_data.connections_max =
        std::min(bus::kTcpDoorLimits.connections_max, share - limits.tcp_admin.connections_max);
    return limits;
}

bool is_tcp(const bus::Listener& listener) { return listener.endpoint().starts_with("tcp://"); }

}  // namespace

std::string_view name_of(messages::Door door) {
    return door == messages::Door::kData ? "data" : "admin";
}

Result<> check(const TcpDoors& doors) {
    if (!doors.has_any()) return Ok{};
    if (doors.keys.empty()) {
        return Error{
            ErrorCode::kInvalidArgument,
            "--tcp-door and --admin-tcp-door need --door-keys DIR (make DIR with pitstop keygen)"};
    }
    return bus::check_curve();
}

Result<Sockets> Sockets::open(
    zmq::context_t& context, const bus::RunDir& run_dir, int num_replicas, const TcpDoors& tcp
) {
    ASSIGN_OR_RETURN(
        const DoorLimits limits, DoorLimits::within_descriptors(num_replicas, tcp.has_any())
    );
    ASSIGN_OR_RETURN(
        bus::Socket data,
        bus::Socket::bind(context, bus::SocketKind::kRouter, run_dir.data_door(), limits.data)
    );
    ASSIGN_OR_RETURN(
        bus::Socket admin,
        bus::Socket::bind(context, bus::SocketKind::kRouter, run_dir.admin_door(), limits.admin)
    );
    bus::SocketLimits inbox_limits =
        bus::kInnerLimits;  // its peers are the schedulers and the detokenizer
    inbox_limits.connections_max = num_replicas + 1 + bus::kStrayConnectionsMax;
    ASSIGN_OR_RETURN(
        bus::Socket inbox,
        bus::Socket::bind(context, bus::SocketKind::kPull, run_dir.tokenizer(), inbox_limits)
    );
    Sockets sockets(std::move(data), std::move(admin), std::move(inbox));
    if (tcp.has_any())
        RETURN_IF_ERROR(sockets.open_tcp(context, tcp, limits.tcp_data, limits.tcp_admin));
    for (int i = 0; i < num_replicas; ++i) {
        const ReplicaId replica{i};
        ASSIGN_OR_RETURN(
            bus::Socket requests,
            bus::Socket::connect(
                context, bus::SocketKind::kPush, run_dir.requests(replica), bus::kInnerLimits
            )
        );
        ASSIGN_OR_RETURN(
            bus::Socket control,
            bus::Socket::connect(
                context, bus::SocketKind::kPush, run_dir.control(replica), bus::kInnerLimits
            )
        );
        sockets.requests_.push_back(std::move(requests));
        sockets.control_.push_back(std::move(control));
    }
    return sockets;
}

Result<> Sockets::open_tcp(
    zmq::context_t& context,
    const TcpDoors& tcp,
    const bus::SocketLimits& data,
    const bus::SocketLimits& admin
) {
    RETURN_IF_ERROR(check(tcp));
    ASSIGN_OR_RETURN(const bus::CurveKeyPair pair, bus::read_server_key(tcp.keys + "/server.key"));
    ASSIGN_OR_RETURN(guard_, bus::KeyGuard::open(context));
    for (const messages::Door at : {messages::Door::kData, messages::Door::kAdmin}) {
        const std::string& place = at == messages::Door::kData ? tcp.data : tcp.admin;
        if (place.empty()) continue;
        const std::string domain(name_of(at));
        ASSIGN_OR_RETURN(
            bus::AllowedKeys allowed,
            bus::AllowedKeys::open(fmt::format("{}/{}.keys", tcp.keys, domain))
        );
        guard_->allow(domain, std::move(allowed));
        RETURN_IF_ERROR(door(at).bind_too(
            "tcp://" + place,
            at == messages::Door::kData ? data : admin,
            {.secret_key = pair.secret_key, .domain = domain}
        ));
    }
    return Ok{};
}

void Sockets::add_to(bus::Poller& poller) {
    poller.add(data_);
    poller.add(admin_);
    poller.add(inbox_);
    if (guard_) guard_->add_to(poller);
}

std::optional<bus::Received> Sockets::receive(messages::Door at, TimePoint now) {
    bus::Socket& socket = door(at);
    std::optional<bus::Received> received = socket.receive();
    if (!received) return received;
    if (received->frames.type == messages::Hello::kType) {
        for (const auto& listener : socket.listeners()) {
            if (is_tcp(*listener) == !received->key.empty())
                listener->mark_spoken(received->connection);
        }
    }
    if (!received->key.empty() && !guard_->is_allowed(now, name_of(at), received->key)) {
        received->refused = make_error(
            ErrorCode::kPermissionDenied,
            "this client's key is no longer allowed at the {} door",
            name_of(at)
        );
    }
    return received;
}

void Sockets::answer_keys() {
    if (guard_) guard_->answer_all();
}

std::vector<messages::ListenerStatus> Sockets::describe() const {
    std::vector<messages::ListenerStatus> statuses;
    for (const messages::Door at : {messages::Door::kData, messages::Door::kAdmin}) {
        for (const auto& listener : door(at).listeners()) {
            const bus::ListenerCounts counts = listener->counts();
            messages::ListenerStatus status;
            status.door = name_of(at);
            status.endpoint = listener->endpoint();
            status.connections = counts.open;
            status.connections_max = listener->connections_max();
            status.accepted_total = counts.accepted_total;
            status.refused_total = counts.refused_total;
            status.handshakes_failed_total = counts.silent_total;
            if (is_tcp(*listener)) status.keys_refused_total = guard_->num_refused(name_of(at));
            statuses.push_back(std::move(status));
        }
    }
    return statuses;
}

std::vector<std::pair<messages::Door, std::string>> Sockets::tcp_endpoints() const {
    std::vector<std::pair<messages::Door, std::string>> endpoints;
    for (const messages::Door at : {messages::Door::kData, messages::Door::kAdmin}) {
        for (const auto& listener : door(at).listeners()) {
            if (is_tcp(*listener)) endpoints.emplace_back(at, listener->endpoint());
        }
    }
    return endpoints;
}

void Sockets::set_linger_ms(int linger_ms) {
    data_.set_linger_ms(linger_ms);
    admin_.set_linger_ms(linger_ms);
}

}  // namespace pitstop::tokenizer
