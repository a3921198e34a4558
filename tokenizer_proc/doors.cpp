#include "tokenizer_proc/doors.h"

#include "base/log.h"
#include "messages/codec.h"

#include <algorithm>
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

messages::ConversationReply reply_to(const auto& call) {
    messages::ConversationReply reply;
    reply.call = call.call;
    reply.id = call.id;
    return reply;
}

}  // namespace

Doors::Doors(Config config, std::shared_ptr<const text::Tokenizer> tokenizer)
    : config_(std::move(config)),
      tokenizer_(std::move(tokenizer)),
      admin_(config_.num_replicas, config_.identity),
      conversations_(tokenizer_.get()),
      hellos_(config_.num_replicas) {}

// One turn: facts in, decisions out.
DoorsOutput Doors::turn(DoorsInput in) {
    now_ = in.now;
    entropy_ = in.entropy;
    num_drawn_ = 0;
    listeners_ = std::move(in.listeners);
    take_back(in);
    for (const bus::Received& received : in.from_tree) from_tree(received);
    if (!in.down_why.empty()) shut_down(in.down_why);
    for (TextDone& done : in.texts) job_done(std::move(done));
    for (const auto& [door, received] : in.from_clients) from_client(door, received);
    if (now_ >= next_probe_) {
        next_probe_ = now_ + Outbox::kProbeAfter;
        outbox_.probe(peers(), now_, out_.to_clients);
    }
    admin_.tick(now_);
    carry_out(admin_.take_output());
    end_conversations();
    flush_outbox();
    send_to_replicas();
    out_.wake_at = next_deadline();
    return std::exchange(out_, {});
}

void Doors::take_back(DoorsInput& in) {
    outbox_.take_back(std::move(in.unsent_to_clients));
    lose_clients();
    for (auto unsent = in.unsent_to_replicas.rbegin(); unsent != in.unsent_to_replicas.rend();
         ++unsent) {
        if (unsent->socket == ReplicaSocket::kControl) {
            control_.push_front(std::move(*unsent));
            continue;
        }
        OpenRequest* request = requests_.find(unsent->key);
        if (request == nullptr) continue;  // ended meanwhile
        refuse_request(
            *request,
            make_error(
                ErrorCode::kResourceExhausted,
                "the queue of replica {} is full",
                raw(unsent->replica)
            )
        );
    }
}

// Sends a call's orders to the replicas and its answer to the caller, but only after the serving
// version is on record.
void Doors::carry_out(Admin::Out out) {
    for (ServedVersion& version : out.serves) out_.serves.push_back(std::move(version));
    if (out.unfinished) out_.unfinished = std::move(out.unfinished);
    for (Admin::Order& order : out.orders) {
        for (int i = 0; i < config_.num_replicas; ++i) {
            if (!order.replica || *order.replica == ReplicaId{i})
                to_control(ReplicaId{i}, order.frames);
        }
    }
    for (Admin::Answer& answer : out.answers)
        outbox_.reply(messages::Door::kAdmin, answer.peer, std::move(answer.frames));
    if (out.drain) drain_until_ = now_ + *out.drain;
    for (const Admin::AbortAsked& asked : out.aborts) {
        admin_.aborted(asked, abort_ids(asked.call));
        carry_out(admin_.take_output());
    }
}

Admin::DoorFacts Doors::facts() const {
    return {
        .server = config_.server,
        .model = config_.model,
        .uptime_s = is_ready() ? seconds(now_ - ready_time_) : 0.0,
        .clients = static_cast<std::int64_t>(requests_.num_peers()),
        .open_requests = static_cast<std::int64_t>(requests_.size()),
        .refused_total = num_refused_ + outbox_.num_dropped(),
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
        carry_out(admin_.take_output());
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
    return handle(peer, std::move(message));
}

Result<> Doors::hello(
    messages::Door door, const std::string& peer, const messages::Frames& frames
) {
    // A newer client may send fields that are unknown here.
    ASSIGN_OR_RETURN(
        const messages::Hello message,
        decode<messages::Hello>(frames, messages::UnknownFields::kIgnore)
    );
    if (!is_ready()) {
        // not counted: the client asks again until everything is up
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
    reply.eos_ids = checks_->end_tokens();
    reply.routes = replica.routes;
    messages::Frames answer = encode(reply);
    add_tree(answer, config_.identity.id());
    outbox_.reply(door, peer, std::move(answer));
    return Ok{};
}

Result<> Doors::handle(const std::string& peer, messages::Generate message) {
    if (drain_until_) {
        return Error{ErrorCode::kUnavailable, "the tree is shutting down: it takes no new request"};
    }
    if (outbox_.is_slow(peer)) {
        return make_error(
            ErrorCode::kResourceExhausted, "slow reader: read what was sent before asking for more"
        );
    }
    if (requests_.size() >= kOpenMax) {
        return make_error(
            ErrorCode::kResourceExhausted, "{} requests are open, the most there may be", kOpenMax
        );
    }
    if (auto problem = checks_->problem_of(message)) return *std::move(problem);
    if (message.rid.empty()) message.rid = random_rid();
    OpenRequest* request = requests_.add(peer, message.rid);
    if (request == nullptr) {
        return make_error(
            ErrorCode::kAlreadyExists, "rid '{}' is an open request of this client", message.rid
        );
    }
    Result<> started = message.turn ? conversations_.check(peer, message.rid, *message.turn) : Ok{};
    message.client = client_path(peer, std::move(message.client));
    if (started && (message.text || !message.sampling.bad_words.empty())) {
        TextJob job{
            .id = std::exchange(next_job_, next(next_job_)),
            .client = message.client,
            .text = std::move(message.text),
            .bad_words = std::exchange(message.sampling.bad_words, {})};
        if (message.input_ids) job.ids = *std::exchange(message.input_ids, std::nullopt);
        request->generate = std::move(message);
        requests_.set_job(*request, job.id);
        start_job(std::move(job));
    } else if (started) {
        std::vector<TokenId> prompt = *std::exchange(message.input_ids, std::nullopt);
        started = dispatch(*request, std::move(message), std::move(prompt));
    }
    if (!started) close(*request);
    return started;
}

Result<> Doors::handle(const std::string& peer, messages::OpenConversation message) {
    if (message.id.empty()) message.id = random_rid();
    RETURN_IF_ERROR(conversations_.open(peer, message, now_));
    outbox_.reply(messages::Door::kData, peer, encode(reply_to(message)));
    return Ok{};
}

Result<> Doors::handle(const std::string& peer, const messages::CloseConversation& message) {
    RETURN_IF_ERROR(conversations_.close(peer, message.id));
    outbox_.reply(messages::Door::kData, peer, encode(reply_to(message)));
    return Ok{};
}

Result<> Doors::handle(const std::string& peer, const messages::Cancel& message) {
    std::map<OpenId, OpenRequest*> found;  // an id may be repeated
    for (const std::string& rid : message.rids) {
        if (OpenRequest* request = requests_.find(peer, rid)) found.emplace(request->id, request);
    }
    std::vector<OpenRequest*> requests;
    for (const auto& [id, request] : found) requests.push_back(request);
    abort(requests, "cancelled by the client");
    cancel_calls(peer, message.calls);
    return Ok{};
}

// ---- the tree's messages ----

void Doors::from_tree(const bus::Received& received) {
    Result<> handled =
        received.refused ? Result<>(*received.refused) : handle_from_tree(received.frames);
    if (handled) return;
    ++num_refused_;  // no sender to answer
    spdlog::warn("refused a message of the tree: {}", handled.error().message);
}

Result<> Doors::handle_from_tree(const messages::Frames& frames) {
    using Others = messages::MessageList<messages::TextBatch, messages::SchedulerHello>;
    const auto use = [&](auto message) -> Result<> {
        if constexpr (std::is_same_v<decltype(message), messages::SchedulerHello>) {
            return greet(message);
        } else {
            deliver(std::move(message));
            return Ok{};
        }
    };
    ASSIGN_OR_RETURN(
        bool is_known, Others::dispatch(frames, messages::UnknownFields::kIgnore, use)
    );
    if (!is_known) {
        admin_.set_facts(facts());
        ASSIGN_OR_RETURN(is_known, admin_.dispatch_part(now_, frames));
        carry_out(admin_.take_output());
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
    checks_.emplace(first, config_.num_replicas, config_.end_token);
    choice_.emplace(config_.num_replicas, first.page_size);
    admin_.set_version(first, config_.weights_path, config_.lost);
    admin_.begin_after(now_, config_.restart);
    if (!config_.keep_committed.empty()) admin_.keep_in(now_, config_.keep_committed);
    admin_.set_facts(facts());
    admin_.bring_back(now_, std::move(config_.adapters));
    carry_out(admin_.take_output());
    return Ok{};
}

void Doors::deliver(messages::TextBatch batch) {
    // First, because the chunks below close their requests.
    std::map<ReplicaId, std::vector<RequestKey>> stopped;
    for (const RequestKey key : batch.stopped) {
        if (const OpenRequest* request = requests_.find(key))
            stopped[request->replica].push_back(key);
    }
    for (auto& [replica, keys] : stopped) {
        end_in_tree(std::move(keys), replica, messages::EndCause::kStopText, {});
    }
    for (messages::OutputChunk& chunk : batch.chunks) {
        OpenRequest* request = requests_.find(chunk.key);
        if (request == nullptr) continue;  // its client has left
        const bool is_last = chunk.finish.has_value();
        if (request->turn) conversations_.take(*request, chunk, now_);
        chunk.key = RequestKey{};
        chunk.rid = request->rid;
        outbox_.add(request->peer, std::move(chunk));
        if (is_last) close(*request);
    }
}

void Doors::to_control(ReplicaId replica, messages::Frames frames) {
    control_.push_back({replica, ReplicaSocket::kControl, std::move(frames), {}});
}

// ---- the end of a turn ----

void Doors::send_to_replicas() {
    for (ToReplica& message : std::exchange(control_, {}))
        out_.to_replicas.push_back(std::move(message));
}

void Doors::flush_outbox() {
    outbox_.flush(now_, out_.to_clients);
    // An abort is answered after the last chunks of the requests it ended.
    for (const OpenId request : std::exchange(ended_, {})) admin_.request_ended(request);
    carry_out(admin_.take_output());
    outbox_.flush_answers(out_.to_clients);
}

TimePoint Doors::next_deadline() const {
    TimePoint first =
        std::min({admin_.next_deadline(), next_probe_, conversations_.next_deadline()});
    if (drain_until_ && !is_end_due(now_)) first = std::min(first, *drain_until_);
    return outbox_.has_more() ? now_ : first;
}

void Doors::shut_down(const std::string& why) {
    down_why_ = why;
    const Error error{ErrorCode::kUnavailable, why};
    for (OpenRequest* request : requests_.all()) fail(*request, error);
    for (const TextCall& call : text_calls_.remove_all()) answer(call, error);
    admin_.fail_all(error);
    carry_out(admin_.take_output());
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

std::uint64_t Doors::random() {
    ++num_drawn_;
    return mix64(entropy_[0] + mix64(entropy_[1] + num_drawn_));
}

std::string Doors::random_rid() {
    const std::uint64_t high = random();
    return fmt::format("{:016x}{:016x}", high, random());
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
