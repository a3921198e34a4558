#include "bus/socket.h"

#include "base/fault_point.h"

#include <utility>

namespace pitstop::bus {
namespace {

zmq::socket_type type_of(SocketKind kind) {
    switch (kind) {
        case SocketKind::kRouter:
            return zmq::socket_type::router;
        case SocketKind::kDealer:
            return zmq::socket_type::dealer;
        case SocketKind::kPull:
            return zmq::socket_type::pull;
        case SocketKind::kPush:
            return zmq::socket_type::push;
    }
    return zmq::socket_type::pair;
}

// Over a network a peer may vanish silently, which only heartbeats notice. On a local socket the
// kernel notices the loss. There a heartbeat only does harm: a process stalled for half a minute
// would lose its connection and its messages.
constexpr int kHeartbeatIntervalMs = 5000;
constexpr int kHeartbeatTimeoutMs = 30000;

bool is_remote(const std::string& endpoint) { return endpoint.starts_with("tcp://"); }

void set_heartbeat(zmq::socket_t& socket) {
    socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatIntervalMs);
    socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
}

// Refuses the message: keeps the first error, and drops the frames.
void refuse(Received& received, Error error) {
    if (!received.refused) received.refused = std::move(error);
    received.frames = {};
}

void keep_frame(Received& received, std::size_t frame, const zmq::message_t& part) {
    if (frame == 0 && part.size() > messages::kTypeBytesMax) {
        refuse(
            received,
            make_error(
                ErrorCode::kMalformed,
                "frame 0 has {} bytes; a message type has at most {}",
                part.size(),
                messages::kTypeBytesMax
            )
        );
    } else if (frame == 0) {
        received.frames.type.assign(part.data<char>(), part.size());
    } else if (frame == 1) {
        received.frames.body.assign(part.data<char>(), part.size());
    } else if (frame - 2 < messages::kRawFramesMax) {
        received.frames.raw.emplace_back(part.data<char>(), part.size());
    } else {
        refuse(
            received,
            make_error(ErrorCode::kTooLarge, "more than {} raw frames", messages::kRawFramesMax)
        );
    }
}

}  // namespace

Result<Socket> Socket::open(zmq::context_t& context, SocketKind kind, const SocketLimits& limits) {
    try {
        zmq::socket_t socket(context, type_of(kind));
        socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(limits.frame_bytes_max));
        socket.set(zmq::sockopt::sndhwm, limits.queue_len_max);
        socket.set(zmq::sockopt::rcvhwm, limits.queue_len_max);
        socket.set(zmq::sockopt::linger, 0);
        socket.set(zmq::sockopt::reconnect_ivl, 20);
        socket.set(zmq::sockopt::reconnect_ivl_max, 500);
        if (kind == SocketKind::kRouter) socket.set(zmq::sockopt::router_mandatory, true);
        return Socket(std::move(socket), kind, limits);
    } catch (const zmq::error_t& error) {
        return make_error(ErrorCode::kInternal, "cannot make a socket: {}", error.what());
    }
}

Result<Socket> Socket::bind(
    zmq::context_t& context,
    SocketKind kind,
    const std::string& endpoint,
    const SocketLimits& limits
) {
    if (is_remote(endpoint)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}': only a door may listen at tcp, and it needs keys",
            endpoint
        );
    }
    ASSIGN_OR_RETURN(Socket socket, open(context, kind, limits));
    RETURN_IF_ERROR(socket.listen(endpoint, limits));
    return socket;
}

Result<> Socket::bind_too(
    const std::string& endpoint, const SocketLimits& limits, const CurveServer& curve
) {
    RETURN_IF_ERROR(check_curve());
    CHECK(is_remote(endpoint));
    try {
        // Options apply to endpoints that are bound after them.
        set_heartbeat(socket_);
        socket_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(limits.frame_bytes_max));
        socket_.set(zmq::sockopt::ipv6, endpoint.starts_with("tcp://["));
        socket_.set(zmq::sockopt::curve_server, true);
        socket_.set(zmq::sockopt::curve_secretkey, curve.secret_key);
        socket_.set(zmq::sockopt::zap_domain, curve.domain);
    } catch (const zmq::error_t& error) {
        return make_error(
            ErrorCode::kInternal, "cannot use the key for '{}': {}", endpoint, error.what()
        );
    }
    return listen(endpoint, limits);
}

Result<> Socket::listen(const std::string& endpoint, const SocketLimits& limits) {
    ASSIGN_OR_RETURN(
        std::unique_ptr<Listener> listener, Listener::open(endpoint, limits.connections_max)
    );
    try {
        socket_.set(zmq::sockopt::handshake_ivl, limits.handshake_ms);
        socket_.set(zmq::sockopt::use_fd, listener->fd());
        socket_.bind(listener->endpoint());
        socket_.set(zmq::sockopt::use_fd, -1);
    } catch (const zmq::error_t& error) {
        return make_error(
            ErrorCode::kUnavailable, "cannot listen on '{}': {}", endpoint, error.what()
        );
    }
    listeners_.push_back(std::move(listener));
    return Ok{};
}

Result<Socket> Socket::connect(
    zmq::context_t& context,
    SocketKind kind,
    const std::string& endpoint,
    const SocketLimits& limits,
    const std::optional<ClientKey>& key
) {
    if (is_remote(endpoint) && !key) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' needs a key: a tcp door admits only clients with a key",
            endpoint
        );
    }
    if (key) RETURN_IF_ERROR(check_curve());
    ASSIGN_OR_RETURN(Socket socket, open(context, kind, limits));
    try {
        if (is_remote(endpoint)) {
            set_heartbeat(socket.socket_);
            socket.socket_.set(zmq::sockopt::ipv6, true);  // names may resolve to either kind
            socket.socket_.set(zmq::sockopt::curve_serverkey, key->server_key);
            socket.socket_.set(zmq::sockopt::curve_publickey, key->pair.public_key);
            socket.socket_.set(zmq::sockopt::curve_secretkey, key->pair.secret_key);
        }
        socket.socket_.connect(endpoint);
    } catch (const zmq::error_t& error) {
        return make_error(
            ErrorCode::kUnavailable, "cannot connect to '{}': {}", endpoint, error.what()
        );
    }
    return socket;
}

std::optional<Received> Socket::receive() {
    Received received;
    std::size_t num_bytes = 0;
    std::size_t index = 0;
    for (bool more = true; more; ++index) {
        zmq::message_t part;
        try {
            // ZeroMQ delivers whole messages: only the first part can be missing.
            if (!socket_.recv(part, zmq::recv_flags::dontwait)) {
                if (index == 0) return std::nullopt;
                refuse(
                    received,
                    make_error(
                        ErrorCode::kMalformed, "the message ended early, after {} frames", index
                    )
                );
                return received;
            }
        } catch (const zmq::error_t& error) {
            if (error.num() == EINTR) {
                --index;
                continue;
            }
            return std::nullopt;
        }
        more = part.more();
        if (kind_ == SocketKind::kRouter && index == 0) {
            received.peer.assign(part.data<char>(), part.size());
            continue;
        }
        if (kind_ == SocketKind::kRouter && index == 1) {
            received.connection = ::zmq_msg_get(part.handle(), ZMQ_SRCFD);
            const char* const key = ::zmq_msg_gets(part.handle(), "User-Id");
            if (key != nullptr) {
                received.key = key;
                const char* const address = ::zmq_msg_gets(part.handle(), "Peer-Address");
                if (address != nullptr) received.address = address;
            }
        }
        num_bytes += part.size();
        if (received.refused) continue;  // read and drop the rest of the message
        if (num_bytes > limits_.message_bytes_max) {
            refuse(
                received,
                make_error(
                    ErrorCode::kTooLarge,
                    "a message of more than {} bytes, the most accepted",
                    limits_.message_bytes_max
                )
            );
            continue;
        }
        keep_frame(received, index - (kind_ == SocketKind::kRouter ? 1 : 0), part);
    }
    const std::size_t num_frames = index - (kind_ == SocketKind::kRouter ? 1 : 0);
    if (num_frames < 2) {
        refuse(
            received,
            make_error(
                ErrorCode::kMalformed,
                "a message of {} frames; at least two are needed, a type and a body",
                num_frames
            )
        );
    }
    reach_fault_point("receive", received.frames.type);
    return received;
}

Sent Socket::send(const messages::Frames& frames, const std::string& peer) {
    reach_fault_point("send", frames.type);
    // Only the first part can fail: ZeroMQ queues whole messages.
    bool is_first = true;
    const auto send_part = [&](const std::string& bytes, bool more) {
        const auto flags =
            zmq::send_flags::dontwait | (more ? zmq::send_flags::sndmore : zmq::send_flags::none);
        for (;;) {
            try {
                const auto sent =
                    socket_.send(zmq::const_buffer(bytes.data(), bytes.size()), flags);
                CHECK(sent || is_first);
                is_first = false;
                return sent ? Sent::kSent : Sent::kFull;
            } catch (const zmq::error_t& error) {
                if (error.num() == EINTR) continue;
                CHECK(is_first);
                return Sent::kGone;  // EHOSTUNREACH, or the context is ending
            }
        }
    };
    if (kind_ == SocketKind::kRouter) {
        if (const Sent sent = send_part(peer, /*more=*/true); sent != Sent::kSent) return sent;
    }
    if (const Sent sent = send_part(frames.type, /*more=*/true); sent != Sent::kSent) return sent;
    if (const Sent sent = send_part(frames.body, !frames.raw.empty()); sent != Sent::kSent)
        return sent;
    for (std::size_t i = 0; i < frames.raw.size(); ++i) {
        if (const Sent sent = send_part(frames.raw[i], i + 1 < frames.raw.size());
            sent != Sent::kSent)
            return sent;
    }
    return Sent::kSent;
}

void Socket::set_linger_ms(int linger_ms) { socket_.set(zmq::sockopt::linger, linger_ms); }

}  // namespace pitstop::bus
