// One client's connection: reads requests, runs their handlers one after the other, writes answers.
//
// While a handler runs the socket is read on, so that a client that goes away is noticed at once;
// what it sent ahead (pipelining) waits its turn. Of a client that sends more than kAheadBytesMax
// ahead the rest is read and forgotten, as leaving it unread would hide the client's departure:
// what was kept is answered, then the connection is closed (RFC 9112 9.3.2 has such clients send
// again what was not answered). A client that closes its sending half while it waits for an answer
// counts as gone, as with the engines' own servers.
//
// Owns:    the socket; itself, by the operations in flight.
// Thread:  the server's loop.
// Bounded: one event or answer waiting to be sent, kAheadBytesMax read ahead, the limits of
//          ServerLimits. Deadlines are checked by the server's tick.
// Source:  RFC 9112. Requests are parsed by Boost.Beast, answers are written here.
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

namespace pitstop {

class Connection final : public Wire, public std::enable_shared_from_this<Connection> {
  public:
    struct Shared {
        ServerContext& context;
        const Router& router;
        bool is_stopping = false;
        std::function<void(Connection&)> on_closed{};
        std::uint64_t num_connections = 0;  // ever
    };

    Connection(boost::asio::ip::tcp::socket socket, Shared& shared);

    void start();
    // Ends what is late. The server calls it several times a second.
    void check_deadline(TimePoint now);
    // Closes it if it waits for a request; else after the answer in progress.
    void close_soon();
    // Ends the running handler's generation; its answer still goes out.
    void end_exchange();
    void close();

    // Wire
    void begin(Response head) override;
    Sent send(std::string_view bytes) override;
    void resume_when_sent(std::coroutine_handle<> waiter) override { on_sent_ = waiter; }
    [[nodiscard]] bool is_gone() const override { return is_gone_; }
    [[nodiscard]] Peer peer() const override { return peer_; }

  private:
    struct Parser;
    struct More;                                      // awaits bytes
    struct Sending;                                   // awaits a write
    enum class Next { kKeepAlive, kClose, kLinger };  // linger: what comes is read and forgotten

    static constexpr std::size_t kReadBytes = 8 << 10;
    static constexpr std::size_t kAheadBytesMax = 64 << 10;

    Task<> run();
    Task<Next> serve_or_fail();
    Task<Next> serve_one();
    Task<std::optional<Response>> read_head(
        Parser& parser, Request& request, const Route*& route, Grant& grant
    );
    [[nodiscard]] std::optional<Response> check_sender(
        const Request& request, const Route& route, Grant& grant
    ) const;
    Task<std::optional<Response>> read_body(
        Parser& parser, Request& request, MemoryBudget::Share& share
    );
    Task<Response> answer_of(const Route& route, Exchange& exchange);
    Task<Next> finish(Response response, bool may_keep_alive);
    Task<> linger();

    [[nodiscard]] Response options_answer(const Request& request, const std::string& allow) const;
    [[nodiscard]] std::string head_of(const Response& response, std::optional<std::size_t> length)
        const;
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

    std::array<char, kReadBytes> incoming_{};
    std::string input_{};  // read and not parsed yet
    bool is_reading_ = false;
    bool is_at_end_ = false;   // nothing more comes
    bool is_overrun_ = false;  // it sent too far ahead: what follows input_ was forgotten
    bool is_late_ = false;     // the deadline of what is being read has passed
    bool is_idle_ = false;     // between two requests
    std::coroutine_handle<> on_more_{};

    std::string output_{};  // what the socket did not take at once
    std::size_t output_begin_ = 0;
    std::size_t output_renewed_ = 0;  // where output_begin_ was when the deadline was set
    std::coroutine_handle<> on_sent_{};

    std::optional<TimePoint> deadline_{};
    std::string pending_head_{};  // of a streamed answer, until its first bytes
    bool has_begun_ = false;      // a streamed answer
    bool has_answered_ = false;   // some of an answer may have been sent
    bool is_chunked_ = false;
    bool is_head_request_ = false;
    bool is_http_1_0_ = false;
    bool is_malformed_ = false;  // the request: what follows it cannot be trusted
    bool is_closing_ = false;    // after this answer
    bool is_gone_ = false;
    Exchange* exchange_ = nullptr;  // while a handler runs
    Peer peer_{};
};

}  // namespace pitstop
