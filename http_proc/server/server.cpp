#include "http_proc/server/server.h"

#include "base/log.h"
#include "http_proc/server/connection.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kTick{200};          // the precision of deadlines
constexpr std::chrono::milliseconds kStopLinger{1'000};  // for last answers, after the grace time
constexpr int kSendBufferBytes = 256 << 10;              // the kernel's buffer for a slow reader
constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    "Connection: close\r\n\r\n";

ErrorCode code_of(const error_code& problem) {
    if (problem == asio::error::address_in_use) return ErrorCode::kAlreadyExists;
    if (problem == asio::error::access_denied) return ErrorCode::kPermissionDenied;
    return ErrorCode::kInvalidArgument;
}

Result<asio::ip::address> address_of(const std::string& host) {
    error_code problem;
    const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, problem);
    if (!problem) return address;
    return make_error(
        ErrorCode::kInvalidArgument,
        "--host is '{}'; accepted are localhost and the IP addresses of this machine (0.0.0.0: "
        "all)",
        host
    );
}

}  // namespace

Result<> check_host(const std::string& host) {
    ASSIGN_OR_RETURN([[maybe_unused]] const asio::ip::address address, address_of(host));
    return Ok{};
}

bool is_loopback(const std::string& host) {
    const auto address = address_of(host);
    return address && address->is_loopback();
}

struct Server::State {
    State(ServerContext& context_given, const Router& router)
        : context(context_given), shared{.context = context_given, .router = router} {
        // A connection that is being closed still runs its last lines, and owns itself meanwhile.
        shared.on_closed = [this](Connection& connection) { connections.erase(&connection); };
    }

    // Watches a descriptor that other code reads. The server owns this object, because waits have
    // its address.
    struct Watched {
        Watched(asio::io_context& io, int fd, std::function<bool()> is_to_go_on)
            : descriptor(io, fd), on_readable(std::move(is_to_go_on)) {}

        asio::posix::stream_descriptor descriptor;
        std::function<bool()> on_readable;
        bool is_waiting = false;
        bool is_over = false;
    };

    void accept();
    void tick();
    void begin_again();
    void serve(tcp::socket socket);
    void wait_for(Watched& watched);

    ServerContext& context;
    asio::io_context io{1};  // run by one thread
    tcp::acceptor acceptor{io};
    bool is_accepting = false;
    asio::steady_timer ticker{io};
    bool is_ticking = false;
    Connection::Shared shared;
    std::unordered_map<Connection*, std::shared_ptr<Connection>> connections{};
    std::vector<std::unique_ptr<Watched>> watched{};
    std::optional<TimePoint> grace_end{};
    std::optional<TimePoint> stop_end{};
};

Server::Server(ServerContext& context, const Router& router)
    : state_(std::make_unique<State>(context, router)) {}
Server::~Server() {
    // the caller owns the descriptor
    for (const auto& watched : state_->watched) watched->descriptor.release();
}

Result<> Server::listen() {
    const ServerOptions& options = state_->context.options();
    error_code problem;
    ASSIGN_OR_RETURN(const asio::ip::address address, address_of(options.host));
    const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(options.port));
    tcp::acceptor& acceptor = state_->acceptor;
    acceptor.open(endpoint.protocol(), problem);
    if (!problem) acceptor.set_option(asio::socket_base::reuse_address(true), problem);
    if (!problem) acceptor.bind(endpoint, problem);
    if (!problem) acceptor.listen(asio::socket_base::max_listen_connections, problem);
    if (problem) {
        return make_error(
            code_of(problem),
            "cannot listen at {}:{}: {}",
            address.to_string(),
            options.port,
            problem.message()
        );
    }
    state_->accept();
    state_->tick();
    return Ok{};
}

std::string Server::url() const {
    const tcp::endpoint endpoint = state_->acceptor.local_endpoint();
    const std::string host = endpoint.address().to_string();
    return fmt::format(
        "http://{}:{}", endpoint.address().is_v6() ? "[" + host + "]" : host, endpoint.port()
    );
}

void Server::State::accept() {
    acceptor.async_accept([this](error_code problem, tcp::socket socket) {
        is_accepting = false;
        if (!acceptor.is_open()) return;
        // Usually no descriptor is free: the backlog waits for the next tick.
        if (problem) return spdlog::warn("cannot accept a connection: {}", problem.message());
        serve(std::move(socket));
        accept();
    });
    is_accepting = true;
}

void Server::State::serve(tcp::socket socket) {
    error_code ignored;
    if (connections.size() >= context.options().limits.connections_max) {
        socket.non_blocking(true, ignored);
        socket.write_some(asio::buffer(kFull), ignored);
        return;
    }
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    std::shared_ptr<Connection> connection;
    try {
        connection = std::make_shared<Connection>(std::move(socket), shared);
        connections.emplace(connection.get(), connection);
        connection->start();
    } catch (const std::bad_alloc&) {
        spdlog::error("closing a connection: not enough memory to serve it");
        if (connection) connections.erase(connection.get());
    }
}

void Server::State::tick() {
    ticker.expires_after(kTick);  // first, because later lines may run out of memory
    ticker.async_wait([this](error_code problem) {
        if (problem) return;
        is_ticking = false;
        tick();
    });
    is_ticking = true;
    begin_again();
    const TimePoint now = Clock::now();
    context.follow_tree();
    if (context.has_tree()) {
        Tree& tree = context.tree();
        tree.silence().beat(tree.client(), now);
        tree.history().beat(tree.client(), tree.request_metrics, now);
    }
    // Ending a connection may remove it from the list.
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections.size());
    for (const auto& [key, connection] : connections) all.push_back(connection);
    for (const auto& connection : all) connection->check_deadline(now);
    if (grace_end && now >= *grace_end) {
        for (const auto& connection : all) connection->end_exchange();
    }
    if (stop_end && now >= *stop_end) {
        for (const auto& connection : all) connection->close();
    }
    if (stop_end && (connections.empty() || now >= *stop_end + kStopLinger)) io.stop();
}

// Retries waits that could not begin because memory ran out.
void Server::State::begin_again() {
    if (!is_accepting && acceptor.is_open()) accept();
    for (const auto& each : watched) {
        if (!each->is_waiting && !each->is_over) wait_for(*each);
    }
}

void Server::State::wait_for(Watched& each) {
    const auto on_ready = [this, &each](error_code problem) {
        each.is_waiting = false;
        each.is_over = problem.failed();
        try {
            if (!each.is_over) each.is_over = !each.on_readable();
        } catch (const std::exception& error) {
            spdlog::error("some arrived bytes were not handled: {}", error.what());
        }
        if (!each.is_over) wait_for(each);
    };
    each.descriptor.async_wait(asio::posix::stream_descriptor::wait_read, on_ready);
    each.is_waiting = true;
}

void Server::watch(int fd, std::function<bool()> on_readable) {
    const auto& each = state_->watched.emplace_back(
        std::make_unique<State::Watched>(state_->io, fd, std::move(on_readable))
    );
    state_->wait_for(*each);
}

void Server::post(std::function<void()> action) { asio::post(state_->io, std::move(action)); }

void Server::run() {
    for (;;) {
        try {
            if (!state_->is_ticking) state_->tick();
            state_->io.run();
            return;
        } catch (const std::exception& error) {  // usually: no memory
            spdlog::error("one turn of the loop failed: {}", error.what());
        }
    }
}

void Server::stop() {
    if (state_->shared.is_stopping) return;
    state_->shared.is_stopping = state_->context.is_stopping = true;
    error_code ignored;
    state_->acceptor.close(ignored);
    state_->grace_end = Clock::now() + state_->context.options().limits.stop_grace;
    state_->stop_end = *state_->grace_end + kStopLinger;
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [key, connection] : state_->connections) all.push_back(connection);
    for (const auto& connection : all) connection->close_soon();
    state_->ticker.cancel();
    state_->tick();
}

}  // namespace pitstop::http
