#include "client/link.h"

#include "messages/codec.h"
#include "messages/door_envelope.h"

#include <utility>

namespace pitstop {
namespace {

// The client's limits are generous: it trusts its tree, and an answer may contain a whole tensor.
constexpr bus::SocketLimits kClientLimits{
    .frame_bytes_max = std::size_t{1} << 30,
    .message_bytes_max = std::size_t{1} << 30,
    .queue_len_max = 4096,
};

constexpr auto kGreetAgainAfter = std::chrono::milliseconds(50);
// A greeting may be lost with a tree that dies before the monitor has started.
constexpr auto kReopenAfter = std::chrono::seconds(10);
// A door that is full, or refuses this client's key, closes each connection at once.
constexpr auto kKnockAgainAfter = std::chrono::milliseconds(200);

// The most bytes of a tree's identity: more leave no room for the field's name. Usual identities
// have 32 bytes.
constexpr std::size_t kTreeBytesMax = messages::kTreeFieldBytesMax - 8;

messages::Frames hello_frames(const std::string& name) {
    messages::Hello hello;
    hello.protocol = messages::kDoorProtocolVersion;
    hello.name = name;
    return encode(hello);
}

}  // namespace

std::optional<Error> problem_of_size(const messages::Frames& frames) {
    std::size_t num_bytes = frames.type.size() + frames.body.size() + messages::kTreeFieldBytesMax;
    for (const std::string& raw : frames.raw) num_bytes += raw.size();
    if (num_bytes <= bus::kDoorLimits.message_bytes_max) return std::nullopt;
    return make_error(
        ErrorCode::kTooLarge,
        "{}: the message takes {} bytes; a door accepts {}",
        frames.type,
        num_bytes,
        bus::kDoorLimits.message_bytes_max
    );
}

Result<Link> Link::open(zmq::context_t& context, Args args, TimePoint now) {
    Link link(context, std::move(args));
    RETURN_IF_ERROR(link.connect(now));
    return link;
}

Result<> Link::connect(TimePoint now) {
    ASSIGN_OR_RETURN(
        bus::Socket socket,
        bus::Socket::connect(*context_, bus::SocketKind::kDealer, endpoint_, kClientLimits, key_)
    );
    ASSIGN_OR_RETURN(bus::SocketMonitor monitor, bus::SocketMonitor::open(*context_, socket));
    monitor_ = std::move(monitor);
    socket_ = std::move(socket);
    CHECK(send(hello_frames(name_)) == bus::Sent::kSent);  // cannot fail: the queue is empty
    reopen_time_ = now + kReopenAfter;
    return Ok{};
}

void Link::reopen(TimePoint now) {
    if (is_ready_) why_not_ready_ = is_other_tree_ ? "it was restarted" : "the connection is lost";
    is_ready_ = false;
    is_other_tree_ = false;
    greet_time_ = TimePoint::max();
    // A refusal of the key is kept: a key is refused before any greeting.
    if (refusal_ && refusal_->code != ErrorCode::kPermissionDenied) refusal_.reset();
    if (!connect(now)) reopen_time_ = now + kGreetAgainAfter;
}

Error Link::why_not() const {
    return make_error(
        ErrorCode::kUnavailable,
        "no tree is ready at {}: {}; nothing was sent",
        endpoint_,
        why_not_ready_
    );
}

std::optional<bus::Received> Link::receive(TimePoint now) {
    for (;;) {
        std::optional<bus::Received> received = socket_->receive();
        if (!received || received->refused) return received;
        const messages::Frames& frames = received->frames;
        if (frames.type == messages::HelloReply::kType) {
            Result<messages::HelloReply> hello =
                decode<messages::HelloReply>(frames, messages::UnknownFields::kIgnore);
            std::string tree = messages::peek_string(frames, "tree");
            if (hello && hello->protocol != messages::kDoorProtocolVersion) {
                refusal_ = make_error(
                    ErrorCode::kUnsupported,
                    "{} speaks protocol {}; this client speaks {}",
                    endpoint_,
                    hello->protocol,
                    messages::kDoorProtocolVersion
                );
            } else if (hello && (tree.empty() || tree.size() > kTreeBytesMax)) {
                refusal_ =
                    make_error(ErrorCode::kMalformed, "{}: hello_reply names no tree", endpoint_);
            } else if (hello) {
                hello_ = *std::move(hello);
                tree_ = std::move(tree);
                is_ready_ = true;
                refusal_.reset();
                greet_time_ = reopen_time_ = TimePoint::max();
            } else {
                refusal_ = std::move(hello).error();
            }
            continue;
        }
        if (frames.type != messages::ErrorReply::kType) return received;
        Result<messages::ErrorReply> error =
            decode<messages::ErrorReply>(frames, messages::UnknownFields::kIgnore);
        if (!error) return received;
        const std::string tree = messages::peek_string(frames, "tree");
        if (is_ready_ && !tree.empty() && tree != tree_) {
            is_other_tree_ = true;
            continue;
        }
        const bool is_about_greeting = error->rid.empty() && raw(error->call) == 0 && !is_ready_;
        if (!is_about_greeting) return received;
        if (error->error.code == ErrorCode::kUnavailable) {
            why_not_ready_ = error->error.message;
            greet_time_ = now + kGreetAgainAfter;
            reopen_time_ = now + kReopenAfter;
        } else {
            refusal_ = make_error(ErrorCode::kInvalidArgument, "{}", error->error.message);
        }
    }
}

void Link::greet_or_reopen(TimePoint now) {
    if (now >= reopen_time_) reopen(now);
    if (now >= greet_time_) {
        greet_time_ = TimePoint::max();
        if (send(hello_frames(name_)) != bus::Sent::kSent) greet_time_ = now + kGreetAgainAfter;
    }
}

bool Link::take_loss() {
    bool is_lost = false;
    for (const bus::SocketEvent& event : monitor_->take_events()) {
        if (event.kind == bus::SocketEvent::Kind::kDisconnected) is_lost = true;
        if (event.kind == bus::SocketEvent::Kind::kKeyRefused) {
            refusal_ = make_error(
                ErrorCode::kPermissionDenied, "{} does not accept this client's key", endpoint_
            );
        }
    }
    if (!is_lost || is_ready_) return is_lost;
    // No door was listening yet; the socket retries by itself. The greeting may have been lost with
    // the connection, so send a new one soon, but not at once, or this would loop without a pause.
    reopen_time_ = std::min(reopen_time_, Clock::now() + kKnockAgainAfter);
    return false;
}

void Link::add_to(bus::Poller& poller) {
    poller.add(*socket_);
    monitor_->add_to(poller);
}

}  // namespace pitstop
