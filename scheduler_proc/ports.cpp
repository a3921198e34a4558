#include "scheduler_proc/ports.h"

#include "base/descriptors.h"
#include "base/log.h"
#include "messages/message_list.h"

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {
namespace {

// The sender's rank, as the message has it.
template <class Message>
Rank rank_of(const Message& message) {
    if constexpr (std::is_same_v<Message, messages::WorkerStaged> || std::is_same_v<Message, messages::WorkerFilled>) {
        return message.outcome.rank;
    } else {
        return message.rank;
    }
}

}  // namespace

Result<Ports> Ports::open(
    zmq::context_t& context, const bus::RunDir& run_dir, ReplicaId replica, int tp
) {
    constexpr int kOwnDescriptors = 28;
    bus::SocketLimits limits = bus::kInnerLimits;
    limits.connections_max = 1 + bus::kStrayConnectionsMax;  // the tokenizer
    bus::SocketLimits worker_limits = bus::kInnerLimits;
    worker_limits.connections_max = tp + bus::kStrayConnectionsMax;
    RETURN_IF_ERROR(raise_descriptor_limit(
        kOwnDescriptors + 2 * limits.connections_max + worker_limits.connections_max
    ));
    ASSIGN_OR_RETURN(
        bus::Socket requests,
        bus::Socket::bind(context, bus::SocketKind::kPull, run_dir.requests(replica), limits)
    );
    ASSIGN_OR_RETURN(
        bus::Socket control,
        bus::Socket::bind(context, bus::SocketKind::kPull, run_dir.control(replica), limits)
    );
    ASSIGN_OR_RETURN(
        bus::Socket workers,
        bus::Socket::bind(
            context, bus::SocketKind::kRouter, run_dir.workers(replica), worker_limits
        )
    );
    ASSIGN_OR_RETURN(
        bus::Socket tokenizer,
        bus::Socket::connect(
            context, bus::SocketKind::kPush, run_dir.tokenizer(), bus::kInnerLimits
        )
    );
    ASSIGN_OR_RETURN(
        bus::Socket detokenizer,
        bus::Socket::connect(
            context, bus::SocketKind::kPush, run_dir.detokenizer(), bus::kInnerLimits
        )
    );
    return Ports(
        std::move(requests),
        std::move(control),
        std::move(workers),
        std::move(tokenizer),
        std::move(detokenizer),
        tp
    );
}

void Ports::add_to(bus::Poller& poller) {
    poller.add(control_);
    poller.add(requests_);
    poller.add(workers_);
}

TurnInput Ports::receive() {
    TurnInput in;
    receive_from(control_, in);
    receive_from(requests_, in);
    receive_from_workers(in);
    in.now = Clock::now();  // the only clock the turn will see
    return in;
}

void Ports::refuse(std::string_view from, const Error& error, TurnInput& in) {
    ++in.num_refused;
    spdlog::warn("refused a message from {}: {}: {}", from, name_of(error.code), error.message);
}

void Ports::receive_from(bus::Socket& socket, TurnInput& in) {
    for (int n = 0; n < bus::kMessagesPerTurnMax; ++n) {
        const std::optional<bus::Received> received = socket.receive();
        if (!received) return;
        if (received->refused) {
            refuse("the tokenizer", *received->refused, in);
            continue;
        }
        Result<bool> taken = messages::MessageList<messages::TokenizedRequest>::dispatch(
            received->frames,
            messages::UnknownFields::kIgnore,
            [&](messages::TokenizedRequest request) -> Result<> {
                in.requests.push_back(std::move(request));
                return Ok{};
            }
        );
        if (taken && !*taken) taken = messages::dispatch_to(received->frames, in.control);
        if (!taken) {
            refuse("the tokenizer", taken.error(), in);
        } else if (!*taken) {
            refuse(
                "the tokenizer",
                make_error(ErrorCode::kUnknownMessage, "'{}'", received->frames.type),
                in
            );
        }
    }
}

void Ports::receive_from_workers(TurnInput& in) {
    for (int n = 0; n < bus::kMessagesPerTurnMax; ++n) {
        const std::optional<bus::Received> received = workers_.receive();
        if (!received) return;
        if (received->refused) {
            refuse("a worker", *received->refused, in);
            continue;
        }
        if (received->frames.type == messages::WorkerHello::kType) {
            greet(*received, in);
            continue;
        }
        const auto peer = std::ranges::find(peers_, received->peer);
        if (peer == peers_.end() || received->peer.empty()) {
            refuse(
                "a worker",
                make_error(
                    ErrorCode::kFailedPrecondition, "'{}' before its hello", received->frames.type
                ),
                in
            );
            continue;
        }
        const auto rank = static_cast<Rank>(peer - peers_.begin());
        const std::string name = fmt::format("rank {}", raw(rank));
        if (received->frames.type == messages::WorkerError::kType) {
            // It exits after this; the launcher sees that and ends the tree.
            if (auto error = decode<messages::WorkerError>(
                    received->frames, messages::UnknownFields::kIgnore
                )) {
                spdlog::error(
                    "{} cannot go on: {}: {}",
                    name,
                    name_of(error->error.code),
                    error->error.message
                );
            } else {
                refuse(name, error.error(), in);
            }
            continue;
        }
        const Result<bool> taken = messages::dispatch_to(received->frames, in.workers);
        if (!taken) {
            refuse(name, taken.error(), in);
        } else if (!*taken) {
            refuse(name, make_error(ErrorCode::kUnknownMessage, "'{}'", received->frames.type), in);
        } else if (const Rank said = std::visit(
                       [](const auto& message) { return rank_of(message); }, in.workers.back()
                   );
                   said != rank) {
            in.workers.pop_back();
            refuse(name, make_error(ErrorCode::kInvalidArgument, "it says rank {}", raw(said)), in);
        }
    }
}

void Ports::greet(const bus::Received& received, TurnInput& in) {
    Result<messages::WorkerHello> hello =
        decode<messages::WorkerHello>(received.frames, messages::UnknownFields::kIgnore);
    if (!hello) return refuse("a worker", hello.error(), in);
    const auto rank = static_cast<std::size_t>(raw(hello->rank));
    if (rank >= peers_.size() || !peers_[rank].empty()) {
        return refuse(
            "a worker",
            make_error(
                ErrorCode::kAlreadyExists,
                "a hello of rank {}; ranks are [0, {}), each once",
                rank,
                peers_.size()
            ),
            in
        );
    }
    peers_[rank] = received.peer;
    in.workers.emplace_back(*std::move(hello));
}

Result<> Ports::send(TurnOutput out) {
    for (const ToWorkers& message : out.workers) {
        RETURN_IF_ERROR(send_to_workers(message));
    }
    for (const ToTokenizer& message : out.tokenizer) {
        to_tokenizer_.push_back(std::visit([](const auto& m) { return encode(m); }, message));
    }
    if (out.batch) to_detokenizer_.push_back(encode(*out.batch));
    RETURN_IF_ERROR(flush(tokenizer_, to_tokenizer_, "the tokenizer"));
    return flush(detokenizer_, to_detokenizer_, "the detokenizer");
}

Result<> Ports::send_to_workers(const ToWorkers& message) {
    // Encoded once: all ranks get the same bytes.
    const messages::Frames frames = std::visit([](const auto& m) { return encode(m); }, message);
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
        switch (workers_.send(frames, peers_[rank])) {
            case bus::Sent::kSent:
                continue;
            case bus::Sent::kGone:
                // The launcher sees its death too, says whose it was, and ends the tree.
                spdlog::error("rank {} is gone", rank);
                continue;
            case bus::Sent::kFull:
                return make_error(ErrorCode::kUnavailable, "rank {} does not read", rank);
        }
    }
    return Ok{};
}

Result<> Ports::flush(
    bus::Socket& socket, std::deque<messages::Frames>& held, std::string_view name
) {
    while (!held.empty() && socket.send(held.front()) == bus::Sent::kSent) held.pop_front();
    if (held.size() <= kHeldMax) return Ok{};
    return make_error(
        ErrorCode::kResourceExhausted, "{} does not read: {} messages are held", name, held.size()
    );
}

}  // namespace pitstop::scheduler
