#include "tp_worker/sources/reply_socket.h"

#include "base/check.h"
#include "pickle/reader.h"

#include <zmq.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr int kFramesMax = 16;
constexpr auto kLook = std::chrono::milliseconds(20);  // how soon a drop is noticed
constexpr int kLingerMs = 1000;                        // for sending the last answer
const char* const kMonitor = "inproc://monitor";

}  // namespace

struct ReplySocket::State {
    zmq::context_t context{1};
    zmq::socket_t socket{context, zmq::socket_type::rep};
    zmq::socket_t monitor{context, zmq::socket_type::pair};
    std::string endpoint{};
    TimePoint begun = Clock::now();
    bool is_connected = false;
    bool is_gone = false;
    bool owes_answer = false;

    // Returns whether a frame has arrived, regardless of signals.
    static bool take_frame(zmq::socket_t& from, zmq::message_t& frame) {
        while (::zmq_msg_recv(frame.handle(), from.handle(), ZMQ_DONTWAIT) < 0) {
            if (errno != EINTR) return false;
        }
        return true;
    }

    // Reads the monitor's events. An event is a 16-bit number and 32 bits of detail.
    void read_monitor() {
        zmq::message_t event;
        while (take_frame(monitor, event)) {
            std::uint16_t number = 0;
            if (event.size() >= sizeof number) std::memcpy(&number, event.data(), sizeof number);
            if (number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) is_connected = true;
            if (number == ZMQ_EVENT_DISCONNECTED && is_connected) is_gone = true;
        }
    }

    std::optional<std::vector<std::string>> take() {
        std::vector<std::string> frames;
        zmq::message_t part;
        if (!take_frame(socket, part)) return std::nullopt;
        frames.push_back(part.to_string());
        while (part.more()) {
            // Once the first frame of a message has arrived, all its frames have.
            if (!take_frame(socket, part)) break;
            if (frames.size() < kFramesMax) frames.push_back(part.to_string());
        }
        owes_answer = true;
        return frames;
    }
};

ReplySocket::ReplySocket(std::unique_ptr<State> state) : state_(std::move(state)) {}
ReplySocket::ReplySocket(ReplySocket&&) noexcept = default;
ReplySocket& ReplySocket::operator=(ReplySocket&&) noexcept = default;
ReplySocket::~ReplySocket() = default;

Result<ReplySocket> ReplySocket::connect(const std::string& endpoint) {
    std::unique_ptr<State> state;
    try {
        state = std::make_unique<State>();
    } catch (const zmq::error_t& error) {
        return make_error(ErrorCode::kResourceExhausted, "cannot make a socket: {}", error.what());
    }
    state->endpoint = endpoint;
    try {
        state->socket.set(zmq::sockopt::linger, kLingerMs);
        state->socket.set(
            zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(pickle::kMessageBytesMax)
        );
        state->monitor.set(zmq::sockopt::linger, 0);
        const int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
        if (::zmq_socket_monitor(state->socket.handle(), kMonitor, events) != 0)
            throw zmq::error_t();
        state->monitor.connect(kMonitor);
        state->socket.connect(endpoint);
    } catch (const zmq::error_t& error) {
        return make_error(
            ErrorCode::kInvalidArgument, "'{}' cannot be connected to: {}", endpoint, error.what()
        );
    }
    return ReplySocket(std::move(state));
}

Result<std::vector<std::string>> ReplySocket::receive(
    TimePoint deadline, const std::atomic<bool>& is_dropped
) {
    CHECK(!state_->owes_answer);
    State& state = *state_;
    while (true) {
        if (is_dropped.load(std::memory_order_relaxed))
            return make_error(ErrorCode::kAborted, "the stage was dropped");
        state.read_monitor();
        if (auto frames = state.take()) return *std::move(frames);
        if (state.is_gone)
            return make_error(ErrorCode::kUnavailable, "the sender at {} is gone", state.endpoint);
        const TimePoint now = Clock::now();
        if (!state.is_connected && now - state.begun >= kConnectMax)
            return make_error(ErrorCode::kUnavailable, "no sender listens at {}", state.endpoint);
        if (now >= deadline) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "the sender at {} did not answer in time",
                state.endpoint
            );
        }
        std::array<zmq::pollitem_t, 2> items{{
            {state.socket.handle(), 0, ZMQ_POLLIN, 0},
            {state.monitor.handle(), 0, ZMQ_POLLIN, 0},
        }};
        const auto wait =
            std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(kLook, deadline - now));
        // A signal ends the poll early; the loop then polls again.
        if (::zmq_poll(items.data(), static_cast<int>(items.size()), wait.count()) < 0 &&
            errno != EINTR) {
            return make_error(
                ErrorCode::kUnavailable, "the socket to {}: {}", state.endpoint, zmq_strerror(errno)
            );
        }
    }
}

void ReplySocket::send(const std::vector<std::string>& frames) {
    CHECK(state_->owes_answer && !frames.empty());
    state_->owes_answer = false;
    for (std::size_t i = 0; i < frames.size(); ++i) {
        const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
        // Never waits: the queue always has room for an answer. If the sender has gone, the
        // answer is lost.
        while (::zmq_send(
                   state_->socket.handle(), frames[i].data(), frames[i].size(), flags | ZMQ_DONTWAIT
               ) < 0 &&
               errno == EINTR) {
        }
    }
}

bool ReplySocket::owes_answer() const { return state_->owes_answer; }

}  // namespace pitstop::tp_worker
