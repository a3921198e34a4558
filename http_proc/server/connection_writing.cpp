// Writes a connection's answers: the head and chunks at once, and later the bytes that the socket
// did not accept.
#include "base/check.h"
#include "http_proc/server/connection.h"
#include "http_proc/server/response_head.h"

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

namespace pitstop::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kRenewBytes = 64 << 10;  // a client that has read this much is not stuck

}  // namespace

ResponseFraming Connection::framing(std::optional<std::size_t> length) const {
    return {
        .length = length,
        .is_http_1_0 = writer_.is_http_1_0,
        .closes = writer_.next == Next::kClose,
        .cors_origin = shared_->context.options().site.cors_origin};
}

void Connection::begin(Response head) {
    CHECK(writer_.progress == Writer::Progress::kNothing);
    writer_.progress = Writer::Progress::kBegun;
    // A client of HTTP/1.0 does not know chunks: it reads until the connection ends.
    if (writer_.is_http_1_0 || shared_->is_stopping) writer_.next = Next::kClose;
    writer_.pending_head = response_head(head, framing(std::nullopt));
}

Wire::Sent Connection::send(std::string_view bytes) {
    CHECK(writer_.progress == Writer::Progress::kBegun);
    if (is_gone() || writer_.is_head_request) return Sent::kGone;
    std::string head = std::exchange(writer_.pending_head, {});
    if (writer_.is_http_1_0) return send_now(head, bytes, {});
    head += fmt::format("{:x}\r\n", bytes.size());
    return send_now(head, bytes, "\r\n");
}

Wire::Sent Connection::send_now(
    std::string_view head, std::string_view bytes, std::string_view tail
) {
    if (is_gone()) return Sent::kGone;
    CHECK(writer_.output.empty());  // one write at a time
    std::array<::iovec, 3> parts{};
    std::size_t num_bytes = 0;
    const std::array<std::string_view, 3> views{head, bytes, tail};
    for (std::size_t i = 0; i < views.size(); ++i) {
        parts[i] = {const_cast<char*>(views[i].data()), views[i].size()};
        num_bytes += views[i].size();
    }
    ::msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    // Sends without a turn of the loop, because the socket nearly always has room.
    const ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        become_gone();
        return Sent::kGone;
    }
    std::size_t num_sent = static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    if (num_sent == num_bytes) return Sent::kDone;
    writer_.output_begin = writer_.output_renewed = 0;
    set_deadline(shared_->context.options().limits.write_timeout);
    try {
        for (const std::string_view view : views) {
            const std::size_t skipped = std::min(num_sent, view.size());
            writer_.output.append(view.substr(skipped));
            num_sent -= skipped;
        }
        send_rest();
    } catch (const std::bad_alloc&) {  // memory ran out within an answer, so nothing may follow
        end_output();
        become_gone();
        return Sent::kGone;
    }
    return Sent::kPending;
}

void Connection::send_rest() {
    socket_.async_write_some(
        asio::buffer(
            writer_.output.data() + writer_.output_begin,
            writer_.output.size() - writer_.output_begin
        ),
        [self = shared_from_this()](error_code problem, std::size_t num_bytes) {
            self->on_written(num_bytes, problem.failed());
        }
    );
}

void Connection::on_written(std::size_t num_bytes, bool has_failed) {
    writer_.output_begin += num_bytes;
    if (!has_failed && !is_gone() && writer_.output_begin < writer_.output.size()) {
        if (writer_.output_begin - writer_.output_renewed >= kRenewBytes) {
            writer_.output_renewed = writer_.output_begin;
            set_deadline(shared_->context.options().limits.write_timeout);
        }
        try {
            return send_rest();
        } catch (const std::bad_alloc&) {
            has_failed = true;
        }
    }
    end_output();
    if (has_failed) become_gone();
    if (const auto waiter = std::exchange(writer_.on_sent, nullptr)) waiter.resume();
}

void Connection::end_output() {
    std::exchange(writer_.output, {});  // an idle connection does not keep a large answer's memory
    deadline_.reset();
}

}  // namespace pitstop::http
