#include "scheduler_proc/ports.h"

#include "base/descriptors.h"
#include "base/log.h"
#include "messages/message_list.h"

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {
namespace {

constexpr std::string_view kNodesDoor = "nodes";

// Returns whether to log this refusal: a peer that sends only garbage must not fill the disk.
bool is_worth_a_line(std::int64_t num_refused) {
    if (num_refused <= Ports::kRefusalsLoggedMax) return true;
    const std::int64_t times = num_refused / Ports::kRefusalsLoggedMax;
    return num_refused % Ports::kRefusalsLoggedMax == 0 && (times & (times - 1)) == 0;
}

// Returns the rank that the message names as its sender.
template <class Message>
Rank rank_of(const Message& message) {
    if constexpr (std::is_same_v<Message, messages::WorkerStaged> || std::is_same_v<Message, messages::WorkerFilled>) {
        return message.outcome.rank;
    } else {
        return message.rank;
    }
}

}  // namespace

Result<Ports> Ports::open(zmq::context_t& context, const bus::RunDir& run_dir, const Args& args) {
    constexpr int kOwnDescriptors = 32;
    constexpr int kConnectionsPerRank = 2;  // one for plans, one to join
    const ReplicaId replica = args.replica;
    bus::SocketLimits limits = bus::kInnerLimits;
    limits.connections_max = 1 + bus::kStrayConnectionsMax;  // 1 for the tokenizer
    bus::SocketLimits worker_limits = bus::kInnerLimits;
    worker_limits.connections_max = kConnectionsPerRank * args.ranks.tp + bus::kStrayConnectionsMax;
    const int num_node_connections = args.node_door.empty() ? 0 : worker_limits.connections_max;
    RETURN_IF_ERROR(raise_descriptor_limit(
        kOwnDescriptors + 2 * limits.connections_max + worker_limits.connections_max +
        num_node_connections
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
    ASSIGN_OR_RETURN(bus::SocketMonitor worker_ends, bus::SocketMonitor::open(context, workers));
    Ports ports(
        std::move(requests),
        std::move(control),
        std::move(workers),
        std::move(tokenizer),
        std::move(detokenizer),
        std::move(worker_ends),
        args.ranks
    );
    if (!args.node_door.empty())
        RETURN_IF_ERROR(ports.open_node_door(context, args, worker_limits));
    return ports;
}

Result<> Ports::open_node_door(
    zmq::context_t& context, const Args& args, const bus::SocketLimits& limits
) {
    const std::string domain(kNodesDoor);
    ASSIGN_OR_RETURN(
        const bus::CurveKeyPair pair, bus::read_server_key(args.door_keys + "/server.key")
    );
    ASSIGN_OR_RETURN(guard_, bus::KeyGuard::open(context));
    ASSIGN_OR_RETURN(
        bus::AllowedKeys allowed,
        bus::AllowedKeys::open(fmt::format("{}/{}.keys", args.door_keys, domain))
    );
    guard_->allow(domain, std::move(allowed));
    bus::SocketLimits at_door = bus::kNodeDoorLimits;
    at_door.connections_max = limits.connections_max;
    return workers_.bind_too(
        "tcp://" + args.node_door, at_door, {.secret_key = pair.secret_key, .domain = domain}
    );
}

std::string Ports::node_endpoint() const {
    return guard_ ? workers_.listeners().back()->endpoint() : std::string();
}

void Ports::add_to(bus::Poller& poller) {
    poller.add(control_);
    poller.add(requests_);
    poller.add(workers_);
    worker_ends_.add_to(poller);
    if (guard_) guard_->add_to(poller);
}

TurnInput Ports::receive() {
    TurnInput in;
    if (guard_) count_refused_keys();
    const std::vector<std::string> ended = take_ended();
    receive_from(control_, in);
    receive_from(requests_, in);
    receive_from_workers(in);
    for (const std::string& peer : ended) {
        if (const std::optional<Rank> rank = meeting_.rank_of(peer)) lose(*rank, kConnectionEnded);
    }
    in.now = Clock::now();  // the only clock of the turn
    meeting_.end_late(in.now);
    send_letters();
    return in;
}

void Ports::count_refused_keys() {
    guard_->answer_all();
    for (const std::int64_t num = guard_->num_refused(kNodesDoor); num_keys_refused_ < num;) {
        if (is_worth_a_line(++num_keys_refused_)) {
            spdlog::warn(
                "refused a connection whose key is not on the list of the nodes' door; refused so "
                "far: {}",
                num_keys_refused_
            );
        }
    }
}

void Ports::end(const messages::Verdict& verdict) {
    constexpr int kLingerMs = 1000;  // so that ranks receive the reason
    meeting_.end(verdict);
    if (num_nodes_ > 1) workers_.set_linger_ms(kLingerMs);
    send_letters();
}

// Ended connections are collected before the messages are read, and handled after them. So a
// worker's last message still counts. A worker that joins in between on a reused descriptor is not
// mistaken for the worker that left.
std::vector<std::string> Ports::take_ended() {
    std::vector<std::string> ended;
    for (const bus::SocketEvent& event : worker_ends_.take_events()) {
        if (event.kind != bus::SocketEvent::Kind::kDisconnected) continue;
        if (auto peer = meeting_.peer_on(event.connection)) ended.push_back(*std::move(peer));
    }
    return ended;
}

void Ports::lose(Rank rank, std::string_view why) {
    const std::string name = meeting_.name_of(rank);
    const bool was_there = meeting_.is_there(rank);
    meeting_.lose(rank, why);
    if (was_there && !meeting_.is_there(rank))
        spdlog::warn("{} left before all ranks had joined: {}; it may join again", name, why);
}

// Sending fails if a rank joined and left between two checks of the connections. Each round of this
// loop either loses a rank or is the last.
void Ports::send_letters() {
    for (auto letters = meeting_.take_letters(); !letters.empty();
         letters = meeting_.take_letters()) {
        for (const RankMeeting::Letter& letter : letters) {
            if (workers_.send(letter.frames, letter.peer) != bus::Sent::kGone) continue;
            if (const auto rank = meeting_.rank_of(letter.peer)) lose(*rank, kConnectionEnded);
        }
    }
}

Result<> Ports::handle_join(const bus::Received& received, messages::RankJoin join) {
    const Rank rank = join.rank;
    RETURN_IF_ERROR(meeting_.join(
        {.peer = received.peer,
         .key = received.key,
         .address = received.address,
         .connection = received.connection},
        std::move(join)
    ));
    note_spoken(received);
    if (num_nodes_ > 1) spdlog::info("{} has joined", meeting_.name_of(rank));
    return Ok{};
}

bool Ports::take_for_meeting(const bus::Received& received, TurnInput& in) {
    const messages::Frames& frames = received.frames;
    if (frames.type == messages::RankJoin::kType) {
        Result<messages::RankJoin> join =
            decode<messages::RankJoin>(frames, messages::UnknownFields::kIgnore);
        if (!join) {
            refuse_worker(received, join.error(), in);
        } else if (const Result<> joined = handle_join(received, *std::move(join)); !joined) {
            refuse("a rank", joined.error(), in);  // the sender has been told
        }
        for (const Error& error : meeting_.take_dismissed()) refuse("a rank", error, in);
        return true;
    }
    const std::optional<Rank> rank = meeting_.rank_of(received.peer);
    if (frames.type == messages::RankPart::kType) {
        Result<messages::RankPart> part =
            decode<messages::RankPart>(frames, messages::UnknownFields::kIgnore);
        const Result<> brought = part
                                     ? meeting_.bring(received.peer, *std::move(part), Clock::now())
                                     : Result<>(part.error());
        if (!brought) refuse_worker(received, brought.error(), in);
        return true;
    }
    if (!rank || frames.type != messages::WorkerError::kType) return false;
    take_error(received, *rank, in);
    return true;
}

// Refuses the sender a place, so that its process exits: answers a request to join with
// `rank_joined`, any other message with `rank_end`. The line of the log comes before the answer:
// whoever has the answer finds the line.
void Ports::refuse_worker(const bus::Received& received, const Error& error, TurnInput& in) {
    const std::string from =
        received.address.empty() ? "a worker" : fmt::format("a worker at {}", received.address);
    refuse(from, error, in);
    if (received.key.empty()) return;
    const bool is_join = received.frames.type == messages::RankJoin::kType;
    static_cast<void>(workers_.send(
        is_join ? encode(messages::RankJoined{.verdict = error})
                : encode(messages::RankEnd{.verdict = error}),
        received.peer
    ));
}

void Ports::note_spoken(const bus::Received& received) {
    if (!received.key.empty()) workers_.listeners().back()->mark_spoken(received.connection);
}

// The worker exits after this message. On this machine the launcher sees that, and ends the tree.
void Ports::take_error(const bus::Received& received, Rank rank, TurnInput& in) {
    const std::string name = meeting_.name_of(rank);
    const Result<messages::WorkerError> error =
        decode<messages::WorkerError>(received.frames, messages::UnknownFields::kIgnore);
    if (!error) return refuse(name, error.error(), in);
    const auto& [code, message] = error->error;
    spdlog::error("{} cannot continue: {}: {}", name, pitstop::name_of(code), message);
    if (num_nodes_ > 1) lose(rank, message);
}

void Ports::refuse(std::string_view from, const Error& error, TurnInput& in) {
    ++in.num_refused;
    if (!is_worth_a_line(++num_refused_)) return;
    spdlog::warn("refused a message from {}: {}: {}", from, name_of(error.code), error.message);
    if (num_refused_ == kRefusalsLoggedMax)
        spdlog::warn(
            "{} messages were refused; from now on only some refusals are logged", num_refused_
        );
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
            refuse_worker(*received, *received->refused, in);
        } else if (take_for_meeting(*received, in)) {
            continue;
        } else if (received->frames.type == messages::WorkerHello::kType) {
            greet(*received, in);
        } else {
            take_from_peer(*received, in);
        }
    }
}

void Ports::take_from_peer(const bus::Received& received, TurnInput& in) {
    const std::string& type = received.frames.type;
    const auto peer = std::ranges::find(peers_, received.peer);
    if (peer == peers_.end() || received.peer.empty()) {
        const Error error =
            make_error(ErrorCode::kFailedPrecondition, "a worker sent '{}' before its hello", type);
        return refuse_worker(received, error, in);
    }
    const auto rank = static_cast<Rank>(peer - peers_.begin());
    const std::string name = meeting_.name_of(rank);
    if (type == messages::WorkerError::kType) return take_error(received, rank, in);
    const Result<bool> taken = messages::dispatch_to(received.frames, in.workers);
    if (!taken) return refuse(name, taken.error(), in);
    if (!*taken) return refuse(name, make_error(ErrorCode::kUnknownMessage, "'{}'", type), in);
    const Rank said =
        std::visit([](const auto& message) { return rank_of(message); }, in.workers.back());
    if (said == rank) return;
    in.workers.pop_back();
    refuse(
        name, make_error(ErrorCode::kInvalidArgument, "its message claims rank {}", raw(said)), in
    );
}

void Ports::greet(const bus::Received& received, TurnInput& in) {
    Result<messages::WorkerHello> hello =
        decode<messages::WorkerHello>(received.frames, messages::UnknownFields::kIgnore);
    if (!hello) return refuse_worker(received, hello.error(), in);
    const auto rank = static_cast<std::size_t>(raw(hello->rank));
    if (rank >= peers_.size() || !peers_[rank].empty()) {
        const Error error = make_error(
            ErrorCode::kAlreadyExists,
            "a hello of rank {}: not one of [0, {}), or its second hello",
            rank,
            peers_.size()
        );
        return refuse_worker(received, error, in);
    }
    // With several machines, only a rank that has joined with the same key may send results.
    if (num_nodes_ > 1 && !meeting_.has(hello->rank, received.key)) {
        const Error error = make_error(
            ErrorCode::kPermissionDenied, "the sender claims rank {}, which is not its own", rank
        );
        return refuse_worker(received, error, in);
    }
    // Refused before the first meeting: the rank may still be dismissed, and its replacement then
    // sends another hello.
    if (num_nodes_ > 1 && !meeting_.have_met()) {
        const Error error = make_error(
            ErrorCode::kFailedPrecondition, "a hello of rank {} before the ranks have met", rank
        );
        return refuse_worker(received, error, in);
    }
    note_spoken(received);
    peers_[rank] = received.peer;
    in.workers.emplace_back(*std::move(hello));
}

// The status of connections is known here, not in the scheduler.
void Ports::report_to(messages::ReplicaStatus& status) {
    meeting_.report_to(status);
    if (!guard_) return;
    const bus::Listener& door = *workers_.listeners().back();
    const bus::ListenerCounts counts = door.counts();
    status.listeners.push_back(
        {.door = std::string(kNodesDoor),
         .endpoint = door.endpoint(),
         .connections = counts.open,
         .connections_max = door.connections_max(),
         .accepted_total = counts.accepted_total,
         .refused_total = counts.refused_total,
         .handshakes_failed_total = counts.silent_total,
         .keys_refused_total = guard_->num_refused(kNodesDoor)}
    );
}

Result<> Ports::send(TurnOutput out) {
    for (const ToWorkers& message : out.workers) {
        RETURN_IF_ERROR(send_to_workers(message));
    }
    for (ToTokenizer& message : out.tokenizer) {
        if (auto* const status = std::get_if<messages::ReplicaStatus>(&message)) report_to(*status);
        to_tokenizer_.push_back(std::visit([](const auto& m) { return encode(m); }, message));
    }
    if (out.batch) to_detokenizer_.push_back(encode(*out.batch));
    RETURN_IF_ERROR(flush(tokenizer_, to_tokenizer_, "the tokenizer"));
    return flush(detokenizer_, to_detokenizer_, "the detokenizer");
}

Result<> Ports::send_to_workers(const ToWorkers& message) {
    // All ranks get the same bytes, so the message is encoded once.
    const messages::Frames frames = std::visit([](const auto& m) { return encode(m); }, message);
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
        switch (workers_.send(frames, peers_[rank])) {
            case bus::Sent::kSent:
                continue;
            case bus::Sent::kGone:
                // The launcher also sees that the process died, names it, and ends the tree.
                spdlog::error("{} is gone", meeting_.name_of(static_cast<Rank>(rank)));
                continue;
            case bus::Sent::kFull:
                return make_error(
                    ErrorCode::kUnavailable,
                    "{} does not read its messages: its queue is full",
                    meeting_.name_of(static_cast<Rank>(rank))
                );
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
        ErrorCode::kResourceExhausted, "{} does not read: {} messages wait", name, held.size()
    );
}

}  // namespace pitstop::scheduler
