// A pusher's communication with all workers: one socket per worker; all workers are asked
// in parallel.
//
// Owns: the sockets and their context. Thread: one.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/frames.h"
#include "messages/push.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop {

class PushSockets {
  public:
    // Binds a socket per device. Errors: kUnavailable if the system provides no socket.
    static Result<PushSockets> bind(const std::vector<std::string>& devices);
    PushSockets(PushSockets&&) noexcept;
    PushSockets& operator=(PushSockets&&) noexcept;
    ~PushSockets();

    // Returns the endpoint of each device's socket, in the form of an ipc source's handles.
    [[nodiscard]] const std::map<std::string, std::string>& handles() const;
    [[nodiscard]] std::size_t size() const;

    // Sends to one worker, or the same to all, even if earlier messages are unanswered: a worker
    // answers in order. The caller bounds the queue by taking answers.
    void send(std::size_t worker, const messages::Frames& message);
    void send_all(const messages::Frames& message);
    // Sends the messages that wait for a worker that has connected since. receive_all() does so,
    // too.
    void flush();

    // Returns the oldest answer of every worker that owes one. Errors: the first answer with a
    // code, as an error that names the worker; kDeadlineExceeded; the result of `is_over` (called
    // now and then) if the tree has ended the update.
    using IsOver = std::function<std::optional<Error>()>;
    Result<std::vector<messages::PushLayout>> receive_layouts(
        Duration patience, const IsOver& is_over
    );
    Result<> receive_done(Duration patience, const IsOver& is_over);

  private:
    struct State;
    explicit PushSockets(std::unique_ptr<State> state);
    Result<std::vector<messages::Frames>> receive_all(Duration patience, const IsOver& is_over);
    std::unique_ptr<State> state_;
};

}  // namespace pitstop
