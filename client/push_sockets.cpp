#include "client/push_sockets.h"

#include "messages/codec.h"

#include <zmq.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

// how often a waiting push checks whether the tree has ended the update
constexpr auto kLook = std::chrono::milliseconds(20);
std::atomic<int> num_pushes{0};  // makes endpoints of one process distinct

// Closes connections of other users when they are accepted, except root's. Any user can find an
// abstract socket, and libzmq ends the process when no descriptor is left for a connection. Workers
// of other users could not open the pusher's memory anyway.
void accept_only_own(zmq::socket_t& socket) {
    for (const ::uid_t uid : {::geteuid(), ::uid_t{0}}) {
        if (zmq_setsockopt(socket.handle(), ZMQ_IPC_FILTER_UID, &uid, sizeof uid) != 0)
            throw zmq::error_t();
    }
}

}  // namespace

struct PushSockets::State {
    struct Worker {
        std::string device{};
        // A DEALER that follows the protocol of a REQ: a REQ cannot send before its worker
        // has connected.
        zmq::socket_t socket{};
        std::deque<messages::Frames> unsent{};
        int num_owed = 0;  // answers that the worker owes
    };
    zmq::context_t context{1};
    std::vector<Worker> workers{};
    std::map<std::string, std::string> handles{};

    static void try_send(Worker& worker) {
        const auto last = zmq::send_flags::dontwait;
        const auto flags = zmq::send_flags::sndmore | last;
        while (!worker.unsent.empty()) {
            // the worker has not connected yet
            if (!worker.socket.send(zmq::message_t(), flags)) return;
            const messages::Frames& message = worker.unsent.front();
            static_cast<void>(worker.socket.send(zmq::buffer(message.type), flags));
            static_cast<void>(worker.socket.send(zmq::buffer(message.body), last));
            worker.unsent.pop_front();
        }
    }

    // Returns the worker's answer, if it has arrived.
    static std::optional<messages::Frames> try_receive(Worker& worker) {
        std::vector<std::string> parts;
        zmq::message_t part;
        if (!worker.socket.recv(part, zmq::recv_flags::dontwait)) return std::nullopt;
        parts.push_back(part.to_string());
        while (part.more() && worker.socket.recv(part, zmq::recv_flags::dontwait))
            parts.push_back(part.to_string());
        messages::Frames frames;
        if (parts.size() == 3) frames = {.type = parts[1], .body = parts[2]};
        return frames;
    }
};

PushSockets::PushSockets(std::unique_ptr<State> state) : state_(std::move(state)) {}
PushSockets::PushSockets(PushSockets&&) noexcept = default;
PushSockets& PushSockets::operator=(PushSockets&&) noexcept = default;
PushSockets::~PushSockets() = default;

Result<PushSockets> PushSockets::bind(const std::vector<std::string>& devices) {
    auto state = std::make_unique<State>();
    const int push = num_pushes.fetch_add(1);
    try {
        for (const std::string& device : devices) {
            zmq::socket_t socket(state->context, zmq::socket_type::dealer);
            socket.set(zmq::sockopt::linger, 0);
            const std::string endpoint =
                fmt::format("ipc://@pitstop-push-{}-{}-{}.sock", ::getpid(), push, device);
            accept_only_own(socket);
            socket.bind(endpoint);
            state->workers.push_back({.device = device, .socket = std::move(socket)});
            state->handles[device] = endpoint;
        }
    } catch (const zmq::error_t& error) {
        return make_error(ErrorCode::kUnavailable, "cannot bind a socket: {}", error.what());
    }
    return PushSockets(std::move(state));
}

const std::map<std::string, std::string>& PushSockets::handles() const { return state_->handles; }
std::size_t PushSockets::size() const { return state_->workers.size(); }

void PushSockets::send(std::size_t index, const messages::Frames& message) {
    State::Worker& worker = state_->workers[index];
    ++worker.num_owed;
    worker.unsent.push_back(message);
    State::try_send(worker);
}

void PushSockets::send_all(const messages::Frames& message) {
    for (std::size_t worker = 0; worker < size(); ++worker) send(worker, message);
}

void PushSockets::flush() {
    for (State::Worker& worker : state_->workers) State::try_send(worker);
}

// Returns the answers by worker.
Result<std::vector<messages::Frames>> PushSockets::receive_all(
    Duration patience, const IsOver& is_over
) {
    std::vector<messages::Frames> answers(size());
    std::vector<char> is_awaited(size());
    for (std::size_t i = 0; i < size(); ++i)
        is_awaited[i] = state_->workers[i].num_owed > 0 ? 1 : 0;
    TimePoint deadline = Clock::now() + patience;
    std::vector<zmq::pollitem_t> items;
    for (State::Worker& worker : state_->workers)
        items.push_back({worker.socket.handle(), 0, ZMQ_POLLIN, 0});
    while (true) {
        std::string missing;
        for (std::size_t i = 0; i < size(); ++i) {
            State::Worker& worker = state_->workers[i];
            State::try_send(worker);
            if (!is_awaited[i]) continue;
            if (auto answer = State::try_receive(worker)) {
                answers[i] = *std::move(answer);
                --worker.num_owed;
                is_awaited[i] = false;
                deadline = Clock::now() + patience;
            } else {
                missing += (missing.empty() ? "" : ", ") + worker.device;
            }
        }
        if (missing.empty()) return answers;
        if (const std::optional<Error> error = is_over()) return *error;
        if (Clock::now() >= deadline) {
            return make_error(ErrorCode::kDeadlineExceeded, "no answer in time from {}", missing);
        }
        // Workers that are ahead of the others are not polled: their next answers stay
        // in the queue.
        for (std::size_t i = 0; i < size(); ++i)
            items[i].events = is_awaited[i] ? short{ZMQ_POLLIN} : short{0};
        // A signal only ends the wait early; zmq::poll would throw.
        if (zmq_poll(items.data(), static_cast<int>(items.size()), kLook.count()) < 0 &&
            zmq_errno() != EINTR)
            throw zmq::error_t();
    }
}

Result<std::vector<messages::PushLayout>> PushSockets::receive_layouts(
    Duration patience, const IsOver& is_over
) {
    ASSIGN_OR_RETURN(const std::vector<messages::Frames> answers, receive_all(patience, is_over));
    std::vector<messages::PushLayout> layouts;
    for (std::size_t i = 0; i < answers.size(); ++i) {
        const std::string& device = state_->workers[i].device;
        if (answers[i].type != messages::PushLayout::kType)
            return make_error(
                ErrorCode::kMalformed,
                "{} answers with an unexpected message '{}'",
                device,
                answers[i].type
            );
        ASSIGN_OR_RETURN(
            messages::PushLayout layout,
            decode<messages::PushLayout>(answers[i], messages::UnknownFields::kIgnore)
        );
        if (!layout.verdict.is_done())
            return make_error(
                layout.verdict.error().code, "{}: {}", device, layout.verdict.message
            );
        layouts.push_back(std::move(layout));
    }
    return layouts;
}

Result<> PushSockets::receive_done(Duration patience, const IsOver& is_over) {
    ASSIGN_OR_RETURN(const std::vector<messages::Frames> answers, receive_all(patience, is_over));
    for (std::size_t i = 0; i < answers.size(); ++i) {
        const std::string& device = state_->workers[i].device;
        if (answers[i].type != messages::PushDone::kType)
            return make_error(
                ErrorCode::kMalformed,
                "{} answers with an unexpected message '{}'",
                device,
                answers[i].type
            );
        ASSIGN_OR_RETURN(
            const messages::PushDone done,
            decode<messages::PushDone>(answers[i], messages::UnknownFields::kIgnore)
        );
        if (!done.verdict.is_done())
            return make_error(done.verdict.error().code, "{}: {}", device, done.verdict.message);
    }
    return Ok{};
}

}  // namespace pitstop
