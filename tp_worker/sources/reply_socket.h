// A REP socket at a sender's endpoint: one answer to each message, and a notice when the
// sender leaves.
//
// Owns:    the socket, its monitor, and a context of their own.
// Thread:  one.
// Bounded: a message has at most pickle::kMessageBytesMax bytes.
#pragma once

#include "base/result.h"
#include "base/time.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class ReplySocket {
  public:
    // Connecting succeeds before the sender exists; receive() then waits for it.
    // Errors: kInvalidArgument for an invalid endpoint.
    static Result<ReplySocket> connect(const std::string& endpoint);
    ReplySocket(ReplySocket&&) noexcept;
    ReplySocket& operator=(ReplySocket&&) noexcept;
    ~ReplySocket();

    // Returns the frames of the next message. Errors: kUnavailable (nothing listens there within
    // kConnectMax; the sender is gone), kDeadlineExceeded, kAborted (the flag was set).
    Result<std::vector<std::string>> receive(
        TimePoint deadline, const std::atomic<bool>& is_dropped
    );
    // Sends the answer to the last message. REQUIRES: owes_answer().
    void send(const std::vector<std::string>& frames);
    // Returns whether the sender waits for an answer.
    [[nodiscard]] bool owes_answer() const;

    static constexpr auto kConnectMax = std::chrono::seconds(5);

  private:
    struct State;
    explicit ReplySocket(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;  // keeps ZeroMQ out of this header
};

}  // namespace pitstop::tp_worker
