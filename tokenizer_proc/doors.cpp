#include "tokenizer_proc/doors.h"

#include "base/log.h"
#include "messages/codec.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

namespace pitstop::tokenizer {
namespace {

// The messages that the data door accepts, except "hello".
using DataMessages = decltype(
    messages::MessageList<messages::Generate, messages::Cancel>{} +
    messages::Calls::RequestsAt<messages::Door::kData>{}
);
constexpr std::size_t kTypeShown = 64;

std::string data_types() {
    std::string names{messages::Hello::kType};
    DataMessages::for_each([&]<class Message>() { names += fmt::format(", {}", Message::kType); });
    return names;
}

// Shortens a client's type name for an error.
std::string shown(std::string_view type) {
    std::string text;
    for (const char c : type.substr(0, kTypeShown)) text += c >= ' ' && c <= '~' ? c : '?';
    return text;
}

// Returns all names by which requests may name the model.
std::vector<std::string> served_names(const Doors::Config& config) {
    std::vector<std::string> names{config.model, config.model_path};
    names.insert(names.end(), config.aliases.begin(), config.aliases.end());
    return names;
}

}  // namespace

Doors::Doors(Config config, const std::shared_ptr<const text::Tokenizer>& tokenizer)
    : config_(std::move(config)),
      replicas_(config_.num_replicas),
      texts_({tokenizer, config_.chat_template, config_.tokenizer_config}, outbox_),
      requests_(tokenizer.get(), {outbox_, replicas_, texts_}),
      admin_(config_.num_replicas, config_.identity, served_names(config_)),
      hellos_(config_.num_replicas) {}

// One turn: facts in, decisions out.
DoorsOutput Doors::turn(DoorsInput in) {
    now_ = in.now;
    requests_.begin_turn(in.now, in.entropy);
    listeners_ = std::move(in.listeners);
    requeue(in);
    for (const bus::Received& received : in.from_tree) from_tree(received);
    if (!in.down_why.empty()) shut_down(in.down_why);
    for (TextDone& done : in.texts) text_done(std::move(done));
    for (const auto& [door, received] : in.from_clients) from_client(door, received);
    if (now_ >= next_probe_) {
        next_probe_ = now_ + Outbox::kProbeAfter;
        outbox_.probe(peers(), now_, out_.to_clients);
    }
    admin_.tick(now_);
    execute(admin_.take_output());
    requests_.end_conversations();
    flush_outbox();
    out_.to_replicas = replicas_.take();
    out_.jobs = texts_.take_jobs();
    out_.cancelled = texts_.take_cancelled();
    out_.wake_at = next_deadline();
    return std::exchange(out_, {});
}

void Doors::requeue(DoorsInput& in) {
    outbox_.requeue(std::move(in.unsent_to_clients));
    requests_.lose_clients();
    for (auto unsent = in.unsent_to_replicas.rbegin(); unsent != in.unsent_to_replicas.rend();
         ++unsent) {
        if (unsent->socket == ReplicaSocket::kControl) {
            replicas_.requeue(std::move(*unsent));
        } else {
            requests_.refuse_unsent(*unsent);
        }
    }
}

// Sends a call's orders to the replicas and its answer to the caller, but not before the serving
// version is on record.
void Doors::execute(Admin::Out out) {
    for (ServedVersion& version : out.serves) out_.serves.push_back(std::move(version));
    if (out.unfinished) out_.unfinished = std::move(out.unfinished);
    for (Admin::Order& order : out.orders) {
        if (order.replica) {
            replicas_.add_control(*order.replica, std::move(order.frames));
        } else {
            replicas_.add_control_to_all(order.frames);
        }
    }
    for (Admin::Answer& answer : out.answers)
        outbox_.reply(messages::Door::kAdmin, answer.peer, std::move(answer.frames));
    if (out.drain) drain_until_ = now_ + *out.drain;
    for (const Admin::AbortAsked& asked : out.aborts) {
        admin_.aborted(asked, requests_.abort_ids(asked.call));
        execute(admin_.take_output());
    }
}

DoorFacts Doors::facts() const {
    return {
        .server = config_.server,
        .model = config_.model,
        .uptime_s = is_ready() ? seconds(now_ - ready_time_) : 0.0,
        .clients = static_cast<std::int64_t>(requests_.num_clients()),
        .open_requests = static_cast<std::int64_t>(requests_.num_open()),
        .refused_total = num_refused_ + requests_.num_refused() + outbox_.num_dropped(),
        .listeners = listeners_,
    };
}

// ---- clients' messages ----

void Doors::from_client(messages::Door door, const bus::Received& received) {
    if (received.refused) {
        return refuse(door, received.peer, received.frames, *received.refused);
    }
    if (auto taken = handle_message(door, received); !taken) {
        refuse(door, received.peer, received.frames, taken.error());
    }
}

void Doors::refuse(
    messages::Door door, const std::string& peer, const messages::Frames& frames, const Error& error
) {
    ++num_refused_;
    answer_error(door, peer, frames, error);
}

void Doors::answer_error(
    messages::Door door, const std::string& peer, const messages::Frames& frames, const Error& error
) {
    messages::ErrorReply reply;
    reply.rid = messages::peek_string(frames, "rid");
    reply.call = CallId{messages::peek_uint(frames, "call")};
    reply.error = error;
    if (reply.rid.size() > messages::kRidBytesMax) reply.rid.clear();
    messages::Frames answer = encode(reply);
    if (config_.identity.is_other(frames)) add_tree(answer, config_.identity.id());
    outbox_.reply(door, peer, std::move(answer));
}

Result<> Doors::handle_message(messages::Door door, const bus::Received& received) {
    const std::string& peer = received.peer;
    const messages::Frames& frames = received.frames;
    const bool is_hello = frames.type == messages::Hello::kType;
    const bool is_admin_type = Admin::takes(frames.type);
    if (!is_hello && !is_admin_type && !DataMessages::has(frames.type)) {
        return make_error(
            ErrorCode::kUnknownMessage,
            "no message type '{}' at this door; the data door takes {}",
            shown(frames.type),
            data_types()
        );
    }
    if (!is_hello && is_admin_type != (door == messages::Door::kAdmin)) {
        return make_error(
            ErrorCode::kPermissionDenied,
            "'{}' belongs to the {} door",
            frames.type,
            is_admin_type ? "admin" : "data"
        );
    }
    if (!down_why_.empty()) return Error{ErrorCode::kUnavailable, down_why_};
    if (is_hello) return hello(door, peer, frames);
    if (!is_ready()) return starting();
    if (is_admin_type) {
        admin_.set_facts(facts());
        const auto place = received.key.empty() ? ClientPlace::kHere : ClientPlace::kElsewhere;
        Result<> taken = admin_.call(now_, peer, frames, place);
        execute(admin_.take_output());
        return taken;
    }
    Result<> taken = Ok{};
    DataMessages::for_type(frames.type, [&]<class Message>() {
        taken = receive<Message>(peer, frames);
    });
    return taken;
}

template <class Message>
Result<> Doors::receive(const std::string& peer, const messages::Frames& frames) {
    ASSIGN_OR_RETURN(Message message, config_.identity.read<Message>(frames));
    if constexpr (std::is_same_v<Message, messages::Generate>) {
        if (drain_until_) {
            return Error{
                ErrorCode::kUnavailable, "the tree is shutting down: it takes no new request"};
        }
    }
    if constexpr (std::is_same_v<Message, messages::Fence>) {
        outbox_.reply(messages::Door::kData, peer, encode(messages::FenceReply{message.call}));
        return Ok{};
    } else if constexpr (std::is_same_v<Message, messages::Tokenize>) {
        return texts_.handle(peer, std::move(message), requests_.checks());
    } else if constexpr (requires { texts_.handle(peer, std::move(message)); }) {
        return texts_.handle(peer, std::move(message));
    } else {
        return requests_.handle(peer, std::move(message));
    }
}

Result<> Doors::hello(
    messages::Door door, const std::string& peer, const messages::Frames& frames
) {
    // A newer client may send fields that this door does not know.
    ASSIGN_OR_RETURN(
        const messages::Hello message,
        decode<messages::Hello>(frames, messages::UnknownFields::kIgnore)
    );
    if (!is_ready()) {
        // not counted: the client asks again until the tree is up
        answer_error(door, peer, frames, starting());
        return Ok{};
    }
    spdlog::debug("hello from '{}'", message.name.substr(0, kTypeShown));
    const messages::SchedulerHello& replica = hellos_.first();
    messages::HelloReply reply;
    reply.protocol = messages::kDoorProtocolVersion;
    reply.server = config_.server;
    reply.model = config_.model;
    reply.model_path = config_.model_path;
    reply.model_type = replica.model_type;
    reply.context_len = replica.context_len;
    reply.vocab_size = replica.vocab_size;
    reply.replicas = config_.num_replicas;
    reply.tp = replica.tp;
    reply.eos_ids = requests_.checks().end_tokens();
    reply.routes = replica.routes;
    messages::Frames answer = encode(reply);
    add_tree(answer, config_.identity.id());
    outbox_.reply(door, peer, std::move(answer));
    return Ok{};
}

// ---- the tree's messages ----

void Doors::from_tree(const bus::Received& received) {
    Result<> handled =
        received.refused ? Result<>(*received.refused) : handle_from_tree(received.frames);
    if (handled) return;
    ++num_refused_;  // the message has no sender who could be answered
    spdlog::warn("refused a message of the tree: {}", handled.error().message);
}

Result<> Doors::handle_from_tree(const messages::Frames& frames) {
    using Others = messages::MessageList<messages::TextBatch, messages::SchedulerHello>;
    const auto use = [&](auto message) -> Result<> {
        if constexpr (std::is_same_v<decltype(message), messages::SchedulerHello>) {
            return greet(message);
        } else {
            requests_.deliver(std::move(message));
            return Ok{};
        }
    };
    ASSIGN_OR_RETURN(
        bool is_known, Others::dispatch(frames, messages::UnknownFields::kIgnore, use)
    );
    if (!is_known) {
        admin_.set_facts(facts());
        ASSIGN_OR_RETURN(is_known, admin_.dispatch_part(now_, frames));
        execute(admin_.take_output());
    }
    if (is_known) return Ok{};
    return make_error(
        ErrorCode::kUnknownMessage, "'{}' is not for this process", shown(frames.type)
    );
}

Result<> Doors::greet(const messages::SchedulerHello& hello) {
    RETURN_IF_ERROR(hellos_.add(hello));
    if (!hellos_.is_complete()) return Ok{};
    hellos_.log_differences();
    const messages::SchedulerHello& first = hellos_.first();
    ready_time_ = now_;
    requests_.begin(first, config_.num_replicas, config_.end_token);
    admin_.set_version(hellos_, config_.weights_path, config_.lost);
    admin_.begin_after(now_, config_.restart);
    if (!config_.keep_committed.empty()) admin_.keep_in(now_, config_.keep_committed);
    admin_.set_facts(facts());
    admin_.bring_back(now_, std::move(config_.adapters));
    execute(admin_.take_output());
    return Ok{};
}

// Handles the finished text of a call or a request.
void Doors::text_done(TextDone done) {
    if (!texts_.finish(done)) requests_.text_done(std::move(done));
}

// Returns the clients of the data door that wait for an answer or for output.
std::vector<std::string> Doors::peers() const {
    std::vector<std::string> all = requests_.peers();
    std::ranges::move(texts_.peers(), std::back_inserter(all));
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

// ---- the end of a turn ----

void Doors::flush_outbox() {
    outbox_.flush(now_, out_.to_clients);
    // An abort is answered after the last chunks of the requests that it ended.
    for (const OpenId request : requests_.take_ended()) admin_.request_ended(request);
    execute(admin_.take_output());
    outbox_.flush_answers(out_.to_clients);
}

TimePoint Doors::next_deadline() const {
    TimePoint first = std::min({admin_.next_deadline(), next_probe_, requests_.next_deadline()});
    if (drain_until_ && !is_end_due(now_)) first = std::min(first, *drain_until_);
    return outbox_.has_more() ? now_ : first;
}

void Doors::shut_down(const std::string& why) {
    down_why_ = why;
    const Error error{ErrorCode::kUnavailable, why};
    requests_.fail_all(error);
    texts_.fail_all(error);
    admin_.fail_all(error);
    execute(admin_.take_output());
}

Error Doors::starting() const {
    if (hellos_.is_complete()) {
        return Error{
            ErrorCode::kUnavailable,
            "the tree is starting; the adapters that were loaded before are being loaded again"};
    }
    return make_error(
        ErrorCode::kUnavailable, "the tree is starting; waiting for {}", hellos_.missing()
    );
}

std::string Doors::describe() const {
    return fmt::format(
        "{} {} on {} replicas",
        admin_.has_had_weights() ? "serves" : "waits for the first weights of",
        config_.model,
        config_.num_replicas
    );
}

}  // namespace pitstop::tokenizer
