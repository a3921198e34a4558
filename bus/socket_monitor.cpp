#include "bus/socket_monitor.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <string>

namespace pitstop::bus {
namespace {

// Numbers the monitors: all monitors of a context need distinct names.
std::atomic<std::uint64_t> next_monitor{1};

// An event has two parts: its number with a value, and the endpoint. Source: zmq_socket_monitor(3).
std::optional<SocketEvent> event_of(const zmq::message_t& part) {
    std::uint16_t number = 0;
    std::int32_t value = 0;
    if (part.size() < sizeof number + sizeof value) return std::nullopt;
    std::memcpy(&number, part.data(), sizeof number);
    std::memcpy(&value, part.data<char>() + sizeof number, sizeof value);
    if (number == ZMQ_EVENT_DISCONNECTED)
        return SocketEvent{.kind = SocketEvent::Kind::kDisconnected, .connection = value};
    if (number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return SocketEvent{.kind = SocketEvent::Kind::kKeyRefused};
    return std::nullopt;
}

}  // namespace

Result<SocketMonitor> SocketMonitor::open(zmq::context_t& context, Socket& socket) {
    try {
        const std::string name = fmt::format("inproc://monitor-{}", next_monitor.fetch_add(1));
        zmq::socket_t monitor(context, zmq::socket_type::pair);
        monitor.set(zmq::sockopt::linger, 0);
        if (zmq_socket_monitor(
                socket.raw_socket().handle(),
                name.c_str(),
                ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
            ) != 0) {
            return make_error(
                ErrorCode::kInternal, "cannot watch a socket: {}", zmq_strerror(zmq_errno())
            );
        }
        monitor.connect(name);
        return SocketMonitor(std::move(monitor));
    } catch (const zmq::error_t& error) {
        return make_error(ErrorCode::kInternal, "cannot watch a socket: {}", error.what());
    }
}

std::vector<SocketEvent> SocketMonitor::take_events() {
    std::vector<SocketEvent> events;
    zmq::message_t part;
    try {
        for (int n = 0; n < kEventsPerTurnMax; ++n) {
            if (!monitor_.recv(part, zmq::recv_flags::dontwait)) break;
            const bool is_first = part.more();
            if (!is_first) continue;  // the second part is the endpoint
            if (const auto event = event_of(part)) events.push_back(*event);
        }
    } catch (const zmq::error_t& error) {
        CHECK(error.num() == EINTR || error.num() == ETERM);
    }
    return events;
}

}  // namespace pitstop::bus
