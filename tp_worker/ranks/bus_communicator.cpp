#include "tp_worker/ranks/bus_communicator.h"

#include "base/check.h"
#include "base/log.h"
#include "messages/codec.h"
#include "messages/steps.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// The scheduler enforces the ranks' limits, and answers later than that only if it hangs.
constexpr auto kSchedulerSlack = std::chrono::seconds(5);
constexpr std::size_t kFloatsMax = messages::kRankPartBytesMax / sizeof(float);

std::int64_t milliseconds_of(Duration limit) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
}

}  // namespace

Result<std::unique_ptr<BusCommunicator>> BusCommunicator::join(
    zmq::context_t& context, BusCommunicatorArgs args
) {
    CHECK(!messages::invalid(args.join));
    ASSIGN_OR_RETURN(
        bus::Socket socket,
        bus::Socket::connect(
            context, bus::SocketKind::kDealer, args.endpoint, bus::kInnerLimits, args.key
        )
    );
    ASSIGN_OR_RETURN(bus::SocketMonitor monitor, bus::SocketMonitor::open(context, socket));
    std::unique_ptr<BusCommunicator> ranks(
        new BusCommunicator(std::move(args), std::move(socket), std::move(monitor))
    );
    // The queue is empty, so it accepts the message.
    CHECK(ranks->socket_.send(encode(ranks->args_.join)) == bus::Sent::kSent);
    RETURN_IF_ERROR(ranks->wait_for_place());
    return ranks;
}

void BusCommunicator::add_to(bus::Poller& poller) {
    poller.add(socket_);
    monitor_.add_to(poller);
}

void BusCommunicator::note_end(Error error) {
    if (!end_) end_ = std::move(error);
}

void BusCommunicator::note_events() {
    for (const bus::SocketEvent& event : monitor_.take_events()) {
        if (event.kind == bus::SocketEvent::Kind::kKeyRefused) {
            note_end(make_error(
                ErrorCode::kPermissionDenied,
                "the head at {} does not accept this node's key",
                args_.endpoint
            ));
        } else if (is_placed_) {
            // A connection that was refused is retried by the socket. After a loss, a last message
            // still counts, although the loss is noticed first.
            while (take_answer()) {
            }
            note_end(
                make_error(ErrorCode::kUnavailable, "the scheduler at {} is gone", args_.endpoint)
            );
        }
    }
}

std::optional<messages::Frames> BusCommunicator::take_answer() {
    while (std::optional<bus::Received> received = socket_.receive()) {
        if (received->refused) {
            spdlog::warn("the scheduler's message is refused: {}", received->refused->message);
            continue;
        }
        if (received->frames.type != messages::RankEnd::kType) return std::move(received->frames);
        const Result<messages::RankEnd> end =
            decode<messages::RankEnd>(received->frames, messages::UnknownFields::kIgnore);
        is_asked_to_end_ = end && end->verdict.is_done();
        if (is_asked_to_end_) {
            note_end({ErrorCode::kAborted, "the head is shutting down"});
        } else {
            note_end(end ? end->verdict.error() : end.error());
        }
    }
    return std::nullopt;
}

Error BusCommunicator::error_of_silence(Duration limit) const {
    return make_error(
        ErrorCode::kDeadlineExceeded,
        "the scheduler at {} has not answered within {} ms",
        args_.endpoint,
        milliseconds_of(limit)
    );
}

Result<> BusCommunicator::wait_for_place() {
    bus::Poller poller;
    add_to(poller);
    const TimePoint deadline = Clock::now() + args_.join_limit;
    while (true) {
        const std::optional<messages::Frames> answer = take_answer();
        if (answer && answer->type == messages::RankJoined::kType) {
            ASSIGN_OR_RETURN(
                const messages::RankJoined joined,
                decode<messages::RankJoined>(*answer, messages::UnknownFields::kIgnore)
            );
            if (!joined.verdict.is_done()) return joined.verdict.error();
            is_placed_ = true;
            return Ok{};
        }
        note_events();
        if (end_) return *end_;
        if (Clock::now() >= deadline) {
            const Error silence = error_of_silence(args_.join_limit);
            if (!args_.key) return silence;
            return make_error(
                silence.code,
                "{}: the head is not running, cannot be reached, or its key is not the one that "
                "this node's key file trusts",
                silence.message
            );
        }
        poller.wait(deadline);
    }
}

Result<messages::RankMet> BusCommunicator::wait_for_parts(std::string_view what, Duration limit) {
    bus::Poller poller;
    add_to(poller);
    const Duration patience = limit + kSchedulerSlack;
    const TimePoint deadline = Clock::now() + patience;
    while (true) {
        while (const std::optional<messages::Frames> answer = take_answer()) {
            if (answer->type != messages::RankMet::kType) continue;
            ASSIGN_OR_RETURN(
                messages::RankMet parts,
                decode<messages::RankMet>(*answer, messages::UnknownFields::kIgnore)
            );
            if (parts.meeting != meeting_) continue;
            if (parts.verdict.is_done()) return parts;
            return parts.verdict.error();
        }
        note_events();
        if (end_) return make_error(end_->code, "{}: {}", what, end_->message);
        if (Clock::now() >= deadline) {
            const Error silence = error_of_silence(patience);
            return make_error(silence.code, "{}: {}", what, silence.message);
        }
        poller.wait(deadline);
    }
}

Result<BusCommunicator::Bytes> BusCommunicator::meet(
    std::string_view what, std::size_t num_bytes, std::span<const std::byte> mine, Duration limit
) {
    CHECK(num_bytes <= messages::kRankPartBytesMax);
    CHECK(mine.empty() || mine.size() == num_bytes);
    if (end_) return *end_;
    messages::RankPart part;
    part.meeting = ++meeting_;
    part.what = what;
    part.num_bytes = static_cast<std::int64_t>(num_bytes);
    part.limit_ms = milliseconds_of(limit);
    part.data.values.resize(mine.size());
    if (!mine.empty()) std::memcpy(part.data.values.data(), mine.data(), mine.size());
    if (socket_.send(encode(part)) != bus::Sent::kSent)
        note_end({ErrorCode::kUnavailable, "cannot send a rank_part to the scheduler"});
    Result<messages::RankMet> parts = wait_for_parts(what, limit);
    if (!parts) {
        note_end(parts.error());
        return parts.error();
    }
    return std::move(parts->data.values);
}

Result<> BusCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    const auto num_ranks = static_cast<std::size_t>(size());
    CHECK(all.size() == mine.size() * num_ranks);
    for (std::size_t begin = 0; begin < mine.size();) {
        const std::size_t num = std::min(messages::kRankPartBytesMax, mine.size() - begin);
        ASSIGN_OR_RETURN(
            const Bytes parts, meet("all_gather", num, mine.subspan(begin, num), args_.peer_limit)
        );
        if (parts.size() != num * num_ranks)
            return Error{
                ErrorCode::kMalformed, "all_gather: the part of a rank has the wrong size"};
        for (std::size_t rank = 0; rank < num_ranks; ++rank)
            std::memcpy(all.data() + rank * mine.size() + begin, parts.data() + rank * num, num);
        begin += num;
    }
    return Ok{};
}

Result<> BusCommunicator::broadcast(std::span<std::byte> data) {
    while (!data.empty()) {
        const std::span<std::byte> piece =
            data.first(std::min(messages::kRankPartBytesMax, data.size()));
        const auto mine = raw(rank()) == 0 ? piece : std::span<std::byte>();
        ASSIGN_OR_RETURN(
            const Bytes parts, meet("broadcast", piece.size(), mine, args_.peer_limit)
        );
        if (parts.size() != piece.size())
            return Error{ErrorCode::kMalformed, "broadcast: the part has the wrong size"};
        std::memcpy(piece.data(), parts.data(), parts.size());
        data = data.subspan(piece.size());
    }
    return Ok{};
}

Result<> BusCommunicator::barrier_within(Duration limit) {
    RETURN_IF_ERROR(meet("barrier", 0, {}, limit));
    return Ok{};
}

Result<> BusCommunicator::all_reduce_sum(std::span<float> data) {
    while (!data.empty()) {
        const std::span<float> piece = data.first(std::min(kFloatsMax, data.size()));
        std::vector<float> all(piece.size() * static_cast<std::size_t>(size()));
        RETURN_IF_ERROR(all_gather(std::as_bytes(piece), std::as_writable_bytes(std::span(all))));
        for (std::size_t i = 0; i < piece.size(); ++i) {
            float sum = all[i];
            for (std::size_t at = i + piece.size(); at < all.size(); at += piece.size())
                sum += all[at];
            piece[i] = sum;
        }
        data = data.subspan(piece.size());
    }
    return Ok{};
}

Result<> BusCommunicator::gather_columns(View2<const float> part, View2<float> whole) {
    CHECK(part.stride == part.cols);
    CHECK(raw(rank()) != 0 || (whole.rows == part.rows && part.cols * size() >= whole.cols));
    const std::int64_t num_floats = part.rows * part.cols;
    for (std::int64_t begin = 0; begin < num_floats;) {
        const std::int64_t end =
            std::min(begin + static_cast<std::int64_t>(kFloatsMax), num_floats);
        const std::span piece(part.data + begin, static_cast<std::size_t>(end - begin));
        std::vector<float> all(piece.size() * static_cast<std::size_t>(size()));
        RETURN_IF_ERROR(all_gather(std::as_bytes(piece), std::as_writable_bytes(std::span(all))));
        for (int of = 0; raw(rank()) == 0 && of < size(); ++of) {
            const float* const data = all.data() + static_cast<std::size_t>(of) * piece.size();
            paste_columns(
                {.rank = of, .cols = part.cols, .begin = begin, .end = end, .data = data}, whole
            );
        }
        begin = end;
    }
    return Ok{};
}

Result<bool> BusCommunicator::has_ended() {
    while (take_answer()) {
    }  // an answer to a meeting that has been given up
    note_events();
    if (is_asked_to_end_) return true;
    if (end_) return *end_;
    return false;
}

void BusCommunicator::say_why(const Error& error) {
    constexpr int kLingerMs = 1000;
    socket_.set_linger_ms(kLingerMs);
    messages::WorkerError why;
    why.rank = rank();
    why.error = error;
    static_cast<void>(socket_.send(encode(why)));
}

}  // namespace pitstop::tp_worker
