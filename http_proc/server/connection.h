// Serves one client's connection: reads requests, runs their handlers one at a time, and writes
// answers.
//
// The socket is read even while a handler runs, so that the server notices at once if a client
// leaves. Requests that a client sends ahead (pipelining) wait their turn. Bytes beyond
// kAheadBytesMax are read and dropped, because unread bytes would hide the client's departure. Then
// the connection closes after the kept requests are answered; RFC 9112 9.3.2 has clients resend
// unanswered requests. A client that closes its sending half while it waits counts as gone, as in
// the engines' servers.
//
// Owns:    the socket. Operations in flight keep the connection alive.
// Thread:  the server's loop.
// Bounded: one event or answer that waits to be sent, kAheadBytesMax bytes read ahead, and
//          ServerLimits. The server's tick checks deadlines.
// Source:  RFC 9112. Boost.Beast parses requests; answers are written here.
#pragma once

#include "base/time.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/router.h"

#include <boost/asio/ip/tcp.hpp>

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {

struct RequestParser;    // request_parser.h
struct ResponseFraming;  // response_head.h

class Connection final : public Wire, public std::enable_shared_from_this<Connection> {
  public:
    struct Shared {
        ServerContext& context;
        const Router& router;
        bool is_stopping = false;
        std::function<void(Connection&)> on_closed{};
        std::uint64_t num_connections = 0;  // since the start
    };

    Connection(boost::asio::ip::tcp::socket socket, Shared& shared);

    void start();
    // Ends a read or write whose deadline has passed. The server calls this often each second.
    void check_deadline(TimePoint now);
    // Closes the connection now if it waits for a request, otherwise after the current answer.
    void close_soon();
    // Ends the generation of the running handler; its answer is still sent.
    void end_exchange();
    void close();

    // The functions of Wire.
    void begin(Response head) override;
    Sent send(std::string_view bytes) override;
    void resume_when_sent(std::coroutine_handle<> waiter) override { writer_.on_sent = waiter; }
    [[nodiscard]] bool is_gone() const override { return phase_ == Phase::kGone; }
    [[nodiscard]] Peer peer() const override { return peer_; }

  private:
    struct More;                                      // awaits bytes
    struct Sending;                                   // awaits a write
    enum class Next { kKeepAlive, kClose, kLinger };  // kLinger: read and drop input before closing

    static constexpr std::size_t kReadBytes = 8 << 10;
    static constexpr std::size_t kAheadBytesMax = 64 << 10;

    Task<> run();
    Task<Next> serve_or_fail();
    Task<Next> serve_one();
    Task<std::optional<Response>> read_head(
        RequestParser& parser, Request& request, const Route*& route, Grant& grant
    );
    Task<std::optional<Response>> read_body(
        RequestParser& parser, Request& request, MemoryBudget::Share& share
    );
    Task<Next> finish(Response response, bool may_keep_alive);
    Task<> linger();

    [[nodiscard]] ResponseFraming framing(std::optional<std::size_t> length) const;
    void pump();
    void on_read(std::size_t num_bytes, bool has_failed);
    void keep(std::string_view bytes);
    Next fail();
    Sent send_now(std::string_view head, std::string_view bytes, std::string_view tail);
    void send_rest();
    void on_written(std::size_t num_bytes, bool has_failed);
    void end_output();
    void become_gone();
    void set_deadline(std::chrono::milliseconds from_now) { deadline_ = Clock::now() + from_now; }

    boost::asio::ip::tcp::socket socket_;
    Shared* shared_;

    // The state of reading from the client.
    struct Reader {
        // kOpen: more may arrive. Otherwise: why nothing more is read.
        enum class State {
            kOpen,
            kLate,     // the deadline of the current read has passed
            kOverrun,  // the client sent too far ahead: bytes after `input` were dropped
            kAtEnd,    // nothing more will arrive
        };

        std::array<char, kReadBytes> incoming{};
        std::string input{};  // read but not parsed yet
        State state = State::kOpen;
        bool is_pending = false;  // a read is in progress
        std::coroutine_handle<> on_more{};

        [[nodiscard]] bool is_over() const { return state != State::kOpen; }
        void resume_waiter() {
            if (const auto waiter = std::exchange(on_more, nullptr)) waiter.resume();
        }
    };

    // The state of the current answer.
    struct Writer {
        enum class Progress {
            kNothing,  // the answer can still become an error
            kBegun,    // the head was given, and the body is streamed
            kEnding,   // the whole answer was given
        };

        Progress progress = Progress::kNothing;
        Next next = Next::kKeepAlive;  // after the answer
        bool is_head_request = false;  // the answer has no body
        bool is_http_1_0 = false;      // the body is not chunked
        std::string pending_head{};    // of a streamed answer, until its first bytes are sent
        std::string output{};          // bytes that the socket did not accept at once
        std::size_t output_begin = 0;
        std::size_t output_renewed = 0;  // output_begin when the deadline was last set
        std::coroutine_handle<> on_sent{};
    };

    enum class Phase {
        kIdle,       // between two requests
        kReading,    // a request's head and body
        kAnswering,  // the handler runs, or its answer is being sent
        kLingering,  // input is dropped
        kGone,       // nobody reads an answer
    };
    // A connection that is gone stays gone, even while the handler still runs.
    void enter(Phase phase) {
        if (phase_ != Phase::kGone) phase_ = phase;
    }

    Reader reader_{};
    Writer writer_{};
    Phase phase_ = Phase::kIdle;
    std::optional<TimePoint> deadline_{};  // of the current read, or of a waiting write
    Exchange* exchange_ = nullptr;         // while a handler runs
    Peer peer_{};
};

}  // namespace pitstop::http
