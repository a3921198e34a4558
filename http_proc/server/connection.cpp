#include "http_proc/server/connection.h"

#include "base/log.h"
#include "http_proc/server/errors.h"
#include "http_proc/server/request_parser.h"
#include "http_proc/server/response_head.h"

#include <algorithm>
#include <exception>
#include <new>
#include <sys/socket.h>

namespace pitstop::http {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::chrono::milliseconds kLingerTime{2'000};
constexpr std::size_t kLingerBytesMax = 4 << 20;
constexpr std::string_view kFailed =
    "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

std::string lower(std::string_view text) {
    std::string lowered(text);
    std::ranges::transform(lowered, lowered.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return lowered;
}

std::string_view view_of(boost::string_view text) { return {text.data(), text.size()}; }

Response refusal(const Request& request, int status, std::string_view message) {
    return error_response(Router::dialect_of(request.path), status, message);
}

Response refusal_of_parse(const Request& request, error_code problem, std::size_t body_bytes_max) {
    if (problem == http::error::header_limit)
        return refusal(request, 431, "the header is too large");
    if (problem == http::error::body_limit) {
        return refusal(
            request, 413, fmt::format("the body is too large; accepted is {} bytes", body_bytes_max)
        );
    }
    if (problem == http::error::bad_version)
        return refusal(request, 505, "accepted is HTTP/1.1 and HTTP/1.0");
    return refusal(request, 400, "not HTTP: " + problem.message());
}

// `allow`: the methods of the path; empty: the path does not exist.
Response refusal_of_route(const Request& request, const std::string& allow) {
    if (allow.empty())
        return refusal(request, 404, fmt::format("there is no route {}", request.path));
    Response response = refusal(
        request, 405, fmt::format("{} takes {}, not {}", request.path, allow, request.method)
    );
    response.headers.push_back({"allow", allow});
    return response;
}

// Checks whether the sender may call the route. `grant` gets all that its key allows.
std::optional<Response> refusal_of_sender(
    const ServerOptions& options, const Request& request, const Route& route, Grant& grant
) {
    grant = grant_of(request, options.keys);
    if (!may(grant, route.access)) {
        const int status = grant == Grant::kNone ? 401 : 403;
        return error_response(route.dialect, status, reason_phrase(status));
    }
    if (has_key(request, options.keys)) return std::nullopt;
    const auto problem = problem_of_site(request, route.access, options.site);
    if (!problem) return std::nullopt;
    grant = Grant::kNone;
    if (route.access == Access::kOpen) return std::nullopt;
    return error_response(route.dialect, 403, *problem);
}

Response answer_to_options(
    const ServerOptions& options, const Request& request, const std::string& allow
) {
    if (allow.empty() && request.path != "*")
        return refusal(request, 404, fmt::format("there is no route {}", request.path));
    Response response = Response::empty(204);
    response.headers.push_back({"allow", allow.empty() ? "GET, HEAD, POST, PUT, OPTIONS" : allow});
    if (!options.site.cors_origin.empty()) {
        response.headers.push_back({"access-control-allow-methods", response.headers[0].value});
        response.headers.push_back(
            {"access-control-allow-headers", "authorization, content-type, x-api-key"}
        );
    }
    return response;
}

// Returns the address; of an IPv6 address only the network, because a client with one address of a
// network has all of them.
std::string client_address(const asio::ip::address& address) {
    if (!address.is_v6()) return address.to_string();
    asio::ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
    if (!address.to_v6().is_v4_mapped()) std::fill(bytes.begin() + 8, bytes.end(), std::uint8_t{0});
    return asio::ip::address_v6(bytes).to_string();
}

Task<Response> answer_of(const Route& route, Exchange& exchange) {
    try {
        co_return co_await route.handler(exchange);
    } catch (const std::exception& error) {
        spdlog::error("{} {}: {}", exchange.request().method, route.path, error.what());
    }
    co_return error_response(route.dialect, 500, "Internal Server Error");
}

// Tells the tree that a call was refused that may have been a part of a version. The tree is told
// before the sender is answered, because the sender may ignore the answer and send later parts.
// After a 503 the sender should retry, so the tree is not told.
Task<> tell_refusal(
    ServerContext& context, const Request& request, const Route& route, const Response& response
) {
    const bool is_refused = response.status >= 400 && response.status != 503;
    if (!route.brings_weights || !is_refused || !context.has_tree()) co_return;
    messages::RefusedPart call;
    call.why = fmt::format(
        "http_proc answered {} to a {} {}", response.status, request.method, route.path
    );
    const auto told = co_await context.tree().call(std::move(call));
    if (!told) spdlog::warn("the tree was not told of a refused call: {}", told.error().message);
}

std::optional<Response> refusal_without_tree(const ServerContext& context, const Route& route) {
    if (!route.needs_tree || context.has_tree()) return std::nullopt;
    return error_response(route.dialect, 503, "the engine is starting");
}

}  // namespace

// co_await returns whether more was read: false at the end, on an error, or at the deadline.
struct Connection::More {
    Connection& connection;

    bool await_ready() const { return connection.reader_.is_over(); }
    void await_suspend(std::coroutine_handle<> waiter) {
        connection.pump();  // if this throws, nothing was started
        connection.reader_.on_more = waiter;
    }
    bool await_resume() const { return !connection.reader_.is_over(); }
};

struct Connection::Sending {
    Connection& connection;
    Sent sent;

    bool await_ready() const { return sent != Sent::kPending; }
    void await_suspend(std::coroutine_handle<> waiter) { connection.writer_.on_sent = waiter; }
    bool await_resume() const { return !connection.is_gone(); }
};

Connection::Connection(asio::ip::tcp::socket socket, Shared& shared)
    : socket_(std::move(socket)), shared_(&shared) {
    peer_.connection = ++shared.num_connections;
    error_code is_closed;
    const auto remote = socket_.remote_endpoint(is_closed);
    if (!is_closed) peer_.address = client_address(remote.address());
}

void Connection::start() { run_detached(run()); }

Task<> Connection::run() {
    const std::shared_ptr<Connection> self = shared_from_this();
    try {
        Next next = Next::kKeepAlive;
        while (next == Next::kKeepAlive) next = co_await serve_or_fail();
        if (next == Next::kLinger) co_await linger();
    } catch (const std::exception& error) {  // there is no memory to wait
        spdlog::error("closing a connection: {}", error.what());
    }
    close();
    shared_->on_closed(*this);
}

// Running out of memory ends only this connection.
Task<Connection::Next> Connection::serve_or_fail() {
    try {
        co_return co_await serve_one();
    } catch (const std::exception& error) {
        spdlog::error("closing a connection: {}", error.what());
    }
    co_return fail();
}

// Sends an error if no answer has begun, from memory that was allocated before.
Connection::Next Connection::fail() {
    exchange_ = nullptr;
    deadline_.reset();
    std::exchange(reader_.input, {});
    if (writer_.progress != Writer::Progress::kNothing || is_gone()) return Next::kClose;
    ::send(socket_.native_handle(), kFailed.data(), kFailed.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return Next::kLinger;
}

// ---- reading ----

void Connection::pump() {
    if (reader_.is_pending || reader_.state == Reader::State::kAtEnd) return;
    socket_.async_read_some(
        asio::buffer(reader_.incoming),
        [self = shared_from_this()](error_code problem, std::size_t num_bytes) {
            self->on_read(num_bytes, problem.failed());
        }
    );
    reader_.is_pending = true;
}

void Connection::on_read(std::size_t num_bytes, bool has_failed) {
    reader_.is_pending = false;
    keep({reader_.incoming.data(), num_bytes});
    if (has_failed) reader_.state = Reader::State::kAtEnd;
    if (reader_.on_more) return reader_.resume_waiter();
    if (exchange_ == nullptr) return;
    if (reader_.state == Reader::State::kAtEnd) return become_gone();
    pump();
}

void Connection::keep(std::string_view bytes) {
    const bool is_ahead = exchange_ != nullptr;
    if (is_ahead && reader_.input.size() + bytes.size() > kAheadBytesMax)
        reader_.state = Reader::State::kOverrun;
    if (reader_.state == Reader::State::kOverrun) return;
    try {
        reader_.input.append(bytes);
    } catch (const std::bad_alloc&) {
        spdlog::error("closing a connection: no memory for the bytes that it sent");
        reader_.state = Reader::State::kAtEnd;
    }
}

// Reads the request's head, finds its route, and checks whether the sender may call it. Returns the
// refusal, if there is one.
Task<std::optional<Response>> Connection::read_head(
    RequestParser& parser, Request& request, const Route*& route, Grant& grant
) {
    const ServerOptions& options = shared_->context.options();
    const ServerLimits& limits = options.limits;
    bool is_body_too_large = false;  // its content-length exceeds the limit; the head was read
    while (!parser.beast.is_header_done()) {
        error_code problem;
        parser.put(reader_.input, problem);
        is_body_too_large = problem == http::error::body_limit;
        if (is_body_too_large) break;
        if (problem) co_return refusal_of_parse(request, problem, limits.body_bytes_max);
        if (parser.beast.is_header_done()) break;
        if (parser.beast.got_some() && phase_ == Phase::kIdle) {
            enter(Phase::kReading);
            set_deadline(limits.header_timeout);
        }
        if (co_await More{*this}) continue;
        if (reader_.state == Reader::State::kLate && phase_ == Phase::kReading)
            co_return refusal(request, 408, "the header took too long");
        // The client ended the connection, between requests or within one: nobody reads an answer.
        phase_ = Phase::kGone;
        co_return Response::empty(400);
    }
    enter(Phase::kReading);
    const auto& head = parser.beast.get();
    writer_.is_http_1_0 = head.version() < 11;
    request.method = std::string(view_of(head.method_string()));
    writer_.is_head_request = request.method == "HEAD";
    for (const auto& field : head) {
        request.headers.push_back(
            {lower(view_of(field.name_string())), std::string(view_of(field.value()))}
        );
    }
    if (!parse_target(view_of(head.target()), request))
        co_return refusal(request, 400, "the request target is not a path");
    const auto num_hosts = std::ranges::count(request.headers, "host", &Header::name);
    if (num_hosts > 1 || (num_hosts == 0 && !writer_.is_http_1_0))
        co_return refusal(request, 400, "a request must have exactly one Host header");
    // Beast decodes only "chunked"; any other coding would reach the handler undecoded.
    const auto coding = request.header("transfer-encoding");
    if (coding && lower(*coding) != "chunked")
        co_return refusal(request, 501, "the only accepted transfer coding is chunked");
    if (const auto encoded = request.header("content-encoding");
        encoded && lower(*encoded) != "identity") {
        co_return refusal(request, 415, "a body with a content encoding is not accepted");
    }

    parser.part = RequestParser::Part::kHeadUnderstood;

    Router::Found found = shared_->router.find(request.method, request.path);
    if (request.method == "OPTIONS") co_return answer_to_options(options, request, found.allow);
    if (found.route == nullptr) co_return refusal_of_route(request, found.allow);
    request.rest = std::move(found.rest);
    route = found.route;
    if (auto refused = refusal_of_sender(options, request, *route, grant)) co_return refused;
    shared_->context.follow_tree();
    if (auto refused = refusal_without_tree(shared_->context, *route)) co_return refused;
    if (is_body_too_large) {
        parser.part = RequestParser::Part::kBody;
        co_return refusal_of_parse(request, http::error::body_limit, limits.body_bytes_max);
    }
    co_return std::nullopt;
}

Task<std::optional<Response>> Connection::read_body(
    RequestParser& parser, Request& request, MemoryBudget::Share& share
) {
    const ServerLimits& limits = shared_->context.options().limits;
    const auto expected = request.header("expect");
    if (expected && lower(*expected) != "100-continue")
        co_return refusal(request, 417, "the only accepted expectation is 100-continue");
    if (expected && !writer_.is_http_1_0 && !parser.beast.is_done() && reader_.input.empty()) {
        if (!co_await Sending{*this, send_now("HTTP/1.1 100 Continue\r\n\r\n", {}, {})})
            co_return Response::empty(400);
    }
    parser.part = RequestParser::Part::kBody;
    parser.beast.eager(true);
    const TimePoint begin = Clock::now();
    std::optional<Response> refused;
    deadline_ = begin + limits.body_timeout;
    while (!parser.beast.is_done() && !refused) {
        error_code problem;
        parser.put(reader_.input, problem);
        const std::size_t num_bytes = parser.beast.get().body().size();
        if (problem) {
            refused = refusal_of_parse(request, problem, limits.body_bytes_max);
        } else if (!share.resize(num_bytes)) {
            refused = refusal(request, 503, "open requests use too much memory; try again");
        } else if (!parser.beast.is_done() && reader_.input.size() > limits.header_bytes_max) {
            // The buffer is full, and the parser still waits for the end of a line.
            refused = refusal(request, 431, "a chunk's extensions or the trailer are too large");
        } else if (!parser.beast.is_done()) {
            const std::size_t seconds = num_bytes / limits.body_bytes_per_second_min;
            deadline_ = begin + limits.body_timeout + std::chrono::seconds(seconds);
            if (!co_await More{*this}) {
                if (reader_.state != Reader::State::kLate) phase_ = Phase::kGone;
                refused = refusal(request, 408, "the body took too long");
            }
        }
    }
    if (refused) {
        std::string().swap(parser.beast.get().body());
        static_cast<void>(share.resize(0));
    } else {
        request.body = std::move(parser.beast.get().body());
    }
    co_return refused;
}

// ---- one request ----

Task<Connection::Next> Connection::serve_one() {
    const ServerLimits& limits = shared_->context.options().limits;
    RequestParser parser(limits);
    Request request;
    const Route* route = nullptr;
    phase_ = Phase::kIdle;
    if (reader_.state == Reader::State::kLate) reader_.state = Reader::State::kOpen;
    writer_ = {};
    set_deadline(limits.idle_timeout);
    MemoryBudget::Share share(shared_->context.memory());
    Grant grant = Grant::kNone;
    std::optional<Response> refused = co_await read_head(parser, request, route, grant);
    if (!refused) refused = co_await read_body(parser, request, share);
    // The tree may have been replaced while the body arrived.
    if (!refused) refused = refusal_without_tree(shared_->context, *route);
    deadline_.reset();
    // Closing with unread bytes would discard answers that are still being sent.
    if (is_gone()) {
        co_return reader_.state == Reader::State::kOverrun ? Next::kLinger : Next::kClose;
    }
    // After a body that was not read, the beginning of the next request cannot be found.
    const bool may_keep_alive = parser.part != RequestParser::Part::kHead &&
                                parser.beast.is_done() && parser.beast.keep_alive();
    if (refused) {
        if (parser.part == RequestParser::Part::kBody)
            co_await tell_refusal(shared_->context, request, *route, *refused);
        const bool is_whole = parser.beast.is_done();
        const Next next = co_await finish(*std::move(refused), may_keep_alive);
        co_return next == Next::kClose && !is_whole ? Next::kLinger : next;
    }
    writer_.next = may_keep_alive ? Next::kKeepAlive : Next::kClose;
    enter(Phase::kAnswering);
    Exchange exchange(std::move(request), grant, shared_->context, *this, std::move(share));
    exchange_ = &exchange;
    if (reader_.state == Reader::State::kAtEnd) phase_ = Phase::kGone;
    pump();
    Response response = co_await answer_of(*route, exchange);
    exchange_ = nullptr;
    if (is_gone()) co_return Next::kClose;
    if (!exchange.is_known_to_tree())
        co_await tell_refusal(shared_->context, exchange.request(), *route, response);
    co_return co_await finish(std::move(response), may_keep_alive);
}

Task<Connection::Next> Connection::finish(Response response, bool may_keep_alive) {
    writer_.next = may_keep_alive && !shared_->is_stopping ? Next::kKeepAlive : Next::kClose;
    const bool has_begun = writer_.progress == Writer::Progress::kBegun;
    writer_.progress = Writer::Progress::kEnding;
    if (has_begun) {
        if (!response.is_streamed) co_return Next::kClose;  // the handler failed: no last chunk
        // A stream without content consists of its head and its end.
        const bool is_chunked = !writer_.is_http_1_0;
        const std::string_view end = is_chunked && !writer_.is_head_request ? "0\r\n\r\n" : "";
        const std::string head = std::exchange(writer_.pending_head, {});
        if (!co_await Sending{*this, send_now(head, {}, end)}) co_return Next::kClose;
        co_return is_chunked ? writer_.next : Next::kClose;
    }
    const std::string head = response_head(response, framing(response.body.size()));
    const std::string_view body = writer_.is_head_request ? std::string_view{} : response.body;
    if (!co_await Sending{*this, send_now(head, body, {})}) co_return Next::kClose;
    co_return writer_.next;
}

// Closing while the client still sends would discard the answer (RFC 9112, 9.6).
Task<> Connection::linger() {
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    if (reader_.state != Reader::State::kAtEnd) reader_.state = Reader::State::kOpen;
    phase_ = Phase::kLingering;
    set_deadline(kLingerTime);
    std::size_t num_bytes = reader_.input.size();
    reader_.input.clear();
    while (num_bytes < kLingerBytesMax) {
        const bool has_more = co_await More{*this};
        if (!has_more) co_return;
        num_bytes += reader_.input.size();
        reader_.input.clear();
    }
}

// ---- the end ----

void Connection::become_gone() {
    if (is_gone()) return;
    phase_ = Phase::kGone;
    if (exchange_ != nullptr) exchange_->say_gone();
}

void Connection::check_deadline(TimePoint now) {
    if (!deadline_ || now < *deadline_) return;
    deadline_.reset();
    if (!writer_.output.empty()) {  // the client does not read
        spdlog::info("a client read nothing for too long; its request ends");
        // Closes with a reset. Otherwise the kernel would keep the stream's data for a client that
        // has no room to learn of the end.
        error_code ignored;
        socket_.set_option(asio::socket_base::linger(true, 0), ignored);
        close();
        return;
    }
    if (!reader_.is_over()) reader_.state = Reader::State::kLate;
    reader_.resume_waiter();
}

void Connection::close_soon() {
    const bool is_between = phase_ == Phase::kIdle || phase_ == Phase::kLingering;
    if (is_between && reader_.input.empty()) close();
}

void Connection::end_exchange() {
    if (exchange_ != nullptr) exchange_->say_gone();
}

void Connection::close() {
    error_code ignored;
    socket_.close(ignored);  // operations in flight end with an error
    become_gone();
}

}  // namespace pitstop::http
