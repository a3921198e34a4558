// A request's output, to be pulled.
#pragma once

#include "base/result.h"
#include "messages/generation.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace pitstop {

using OnChunk = std::function<void(messages::OutputChunk)>;

class IoLoop;
class Mailbox;
enum class RequestNumber : std::uint64_t;

// Thread: one at a time; the client that made it may be gone. In a callback on the client's thread
//         nothing waits: the next output arrives on that very thread.
class Stream {
  public:
    // Forever is about three years: a deadline that never passes and still fits every clock.
    static constexpr std::chrono::milliseconds kForever{std::chrono::hours(24 * 1000)};

    Stream(Stream&&) noexcept;
    Stream& operator=(Stream&&) noexcept;
    // Cancels the request if it is still open.
    ~Stream();

    [[nodiscard]] const std::string& rid() const { return rid_; }

    // Returns the output since the last call, or waits for the next. Returns nothing if the time
    // ran out, or if the last chunk was taken before (is_done() tells which). In a callback on the
    // client's thread, the time runs out at once.
    std::optional<messages::OutputChunk> next(std::chrono::milliseconds timeout = kForever);

    // Waits for everything that next() has not returned yet, joined. Errors: the request's own;
    // kDeadlineExceeded if the time runs out (the request continues, and wait() may be called
    // again); kFailedPrecondition in a callback on the client's thread.
    Result<messages::OutputChunk> wait(std::chrono::milliseconds timeout = kForever);

    // Returns whether the chunk with `finish` was taken.
    [[nodiscard]] bool is_done() const { return is_done_; }

    // Ends the request with its output so far: the last chunk has finish.reason abort.
    void cancel();

  private:
    friend class Client;
    Stream(
        std::string rid,
        std::optional<RequestNumber> number,
        std::shared_ptr<Mailbox> mailbox,
        std::weak_ptr<IoLoop> io
    );
    [[nodiscard]] bool is_in_callback() const;

    std::string rid_;
    std::optional<RequestNumber> number_;  // empty if the request was never sent
    std::shared_ptr<Mailbox> mailbox_;     // shared with the I/O thread, which fills it
    std::weak_ptr<IoLoop> io_;
    std::optional<messages::OutputChunk> collected_{};  // left by a wait() whose time ran out
    bool is_done_ = false;
};

}  // namespace pitstop
