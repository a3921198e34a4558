#include "client/stream.h"

#include "base/time.h"
#include "client/io_loop.h"
#include "client/mailbox.h"

#include <algorithm>
#include <utility>

namespace pitstop {

Stream::Stream(std::string rid, std::shared_ptr<Mailbox> mailbox, std::weak_ptr<IoLoop> io)
    : rid_(std::move(rid)), mailbox_(std::move(mailbox)), io_(std::move(io)) {}

Stream::Stream(Stream&&) noexcept = default;

Stream& Stream::operator=(Stream&& other) noexcept {
    Stream old(std::move(*this));  // ends what this one had
    rid_ = std::move(other.rid_);
    mailbox_ = std::move(other.mailbox_);
    io_ = std::move(other.io_);
    collected_ = std::move(other.collected_);
    is_done_ = other.is_done_;
    return *this;
}

Stream::~Stream() {
    if (!mailbox_ || is_done_) return;  // moved from, or over
    if (const std::shared_ptr<IoLoop> io = io_.lock()) io->abandon(rid_);
}

std::optional<OutputChunk> Stream::next(std::chrono::milliseconds timeout) {
    if (is_done_) return std::nullopt;
    std::optional<OutputChunk> chunk = std::exchange(collected_, std::nullopt);
    if (!chunk) chunk = mailbox_->take(timeout);
    if (chunk && chunk->finish) is_done_ = true;
    return chunk;
}

Result<OutputChunk> Stream::wait(std::chrono::milliseconds timeout) {
    if (is_done_) {
        return make_error(ErrorCode::kFailedPrecondition, "request '{}' was read to its end", rid_);
    }
    const TimePoint deadline = Clock::now() + timeout;
    while (!collected_ || !collected_->finish) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        std::optional<OutputChunk> chunk =
            mailbox_->take(std::max(left, std::chrono::milliseconds(0)));
        if (!chunk) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "request '{}' is not done after {} ms; it goes on",
                rid_,
                timeout.count()
            );
        }
        if (!collected_) {
            collected_ = std::move(chunk);
        } else {
            append_chunk(*collected_, *std::move(chunk));
        }
    }
    is_done_ = true;
    OutputChunk whole = *std::exchange(collected_, std::nullopt);
    if (whole.finish->reason == FinishReason::kError) {
        return Error{error_code_named(whole.finish->code), std::move(whole.finish->message)};
    }
    return whole;
}

void Stream::cancel() {
    if (const std::shared_ptr<IoLoop> io = io_.lock()) io->cancel({rid_});
}

}  // namespace pitstop
