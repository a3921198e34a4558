#include "client/stream.h"

#include "base/time.h"
#include "client/io_loop.h"
#include "client/mailbox.h"

#include <algorithm>
#include <utility>

namespace pitstop {
namespace {

// Limits a timeout to what a clock can represent: max() would overflow into the past.
std::chrono::milliseconds within(std::chrono::milliseconds timeout) {
    return std::min(timeout, Stream::kForever);
}

}  // namespace

Stream::Stream(
    std::string rid,
    std::optional<RequestNumber> number,
    std::shared_ptr<Mailbox> mailbox,
    std::weak_ptr<IoLoop> io
)
    : rid_(std::move(rid)), number_(number), mailbox_(std::move(mailbox)), io_(std::move(io)) {}

Stream::Stream(Stream&&) noexcept = default;

Stream& Stream::operator=(Stream&& other) noexcept {
    Stream old(std::move(*this));  // ends the request that this stream had
    rid_ = std::move(other.rid_);
    number_ = other.number_;
    mailbox_ = std::move(other.mailbox_);
    io_ = std::move(other.io_);
    collected_ = std::move(other.collected_);
    is_done_ = other.is_done_;
    return *this;
}

Stream::~Stream() {
    if (!mailbox_ || !number_ || is_done_) return;  // moved from, never sent, or done
    if (const std::shared_ptr<IoLoop> io = io_.lock()) io->abandon(rid_, *number_);
}

bool Stream::is_in_callback() const {
    const std::shared_ptr<IoLoop> io = io_.lock();
    return io && io->is_on_thread();
}

std::optional<messages::OutputChunk> Stream::next(std::chrono::milliseconds timeout) {
    if (is_done_) return std::nullopt;
    std::optional<messages::OutputChunk> chunk = std::exchange(collected_, std::nullopt);
    if (!chunk) chunk = is_in_callback() ? mailbox_->take() : mailbox_->take(within(timeout));
    if (chunk && chunk->finish) is_done_ = true;
    return chunk;
}

Result<messages::OutputChunk> Stream::wait(std::chrono::milliseconds timeout) {
    if (is_done_) {
        return make_error(ErrorCode::kFailedPrecondition, "request '{}' was read to its end", rid_);
    }
    if (is_in_callback()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "Stream::wait would never return in a callback: call it on another thread"
        );
    }
    const TimePoint deadline = Clock::now() + within(timeout);
    while (!collected_ || !collected_->finish) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        std::optional<messages::OutputChunk> chunk =
            mailbox_->take(std::max(left, std::chrono::milliseconds(0)));
        if (!chunk) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "request '{}' has not finished after {} ms; it continues",
                rid_,
                timeout.count()
            );
        }
        if (!collected_) {
            collected_ = std::move(chunk);
        } else {
            messages::append_chunk(*collected_, *std::move(chunk));
        }
    }
    is_done_ = true;
    messages::OutputChunk whole = *std::exchange(collected_, std::nullopt);
    if (whole.finish->reason == messages::FinishReason::kError) {
        return whole.finish->verdict.error();
    }
    return whole;
}

void Stream::cancel() {
    if (const std::shared_ptr<IoLoop> io = io_.lock()) io->cancel({rid_});
}

}  // namespace pitstop
