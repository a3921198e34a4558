#include "tokenizer_proc/doors.h"

#include "base/log.h"
#include "messages/codec.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::tokenizer {
namespace {

constexpr std::string_view kDataTypes = "hello, generate, cancel, tokenize, render_chat";
constexpr auto kRetryAfter =
    std::chrono::milliseconds(5);  // a full queue says not when it has room
constexpr std::size_t kTypeShown = 64;

bool is_data_type(std::string_view type) {
    return type == messages::Generate::kType || type == messages::Cancel::kType ||
           type == messages::Tokenize::kType || type == messages::RenderChat::kType;
}

// A client's type name, fit for a message.
std::string shown(std::string_view type) {
    std::string text;
    for (const char c : type.substr(0, kTypeShown)) text += c >= ' ' && c <= '~' ? c : '?';
    return text;
}

}  // namespace

Doors::Doors(Config config, std::shared_ptr<const text::Tokenizer> tokenizer, Ports ports)
    : config_(std::move(config)),
      tokenizer_(std::move(tokenizer)),
      ports_(std::move(ports)),
      outbox_([this](messages::Door door, const std::string& peer, const messages::Frames& frames) {
          return ports_.to_client(door, peer, frames);
      }),
      admin_(
          config_.num_replicas,
          config_.identity,
          Admin::Ports{
              .reply = [this](
                           const std::string& peer, messages::Frames frames
                       ) { outbox_.reply(messages::Door::kAdmin, peer, std::move(frames)); },
              .to_all_replicas =
                  [this](const messages::Frames& frames) {
                      for (int i = 0; i < config_.num_replicas; ++i)
                          to_control(ReplicaId{i}, frames);
                  },
              .to_replica = [this](
                                ReplicaId replica, const messages::Frames& frames
                            ) { to_control(replica, frames); },
              .describe =
                  [this](messages::StatusReply& reply) {
                      reply.server = config_.server;
                      reply.model = config_.model;
                      reply.weights_path = admin_.version().path;
                      if (is_ready()) {
                          reply.uptime_s =
                              std::chrono::duration<double>(now_ - ready_time_).count();
                      }
                      reply.clients = static_cast<std::int64_t>(requests_.num_peers());
                      reply.open_requests = static_cast<std::int64_t>(requests_.size());
                      reply.refused_total = num_refused_ + outbox_.num_dropped();
                      reply.listeners = ports_.listeners();
                  },
              .abort = [this](
                           const std::vector<std::string>* rids, const std::string& message
                       ) { return abort_ids(rids, message); },
              .serves = [this](const ServedVersion& version) { ports_.serves(version); },
              .shut_down = [this](Duration drain) { drain_until_ = admin_time_ + drain; },
          }
      ),
      hellos_(static_cast<std::size_t>(config_.num_replicas)),
      held_control_(static_cast<std::size_t>(config_.num_replicas)) {}

// ---- clients' messages ----

void Doors::from_client(TimePoint now, messages::Door door, const bus::Received& received) {
    if (received.refused) {
        return refuse(door, received.peer, received.frames, *received.refused);
    }
    if (auto taken = take(now, door, received); !taken) {
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

Result<> Doors::take(TimePoint now, messages::Door door, const bus::Received& received) {
    const std::string& peer = received.peer;
    const messages::Frames& frames = received.frames;
    const bool is_admin_type = Admin::takes(frames.type);
    if (frames.type != messages::Hello::kType && !is_admin_type && !is_data_type(frames.type)) {
        return make_error(
            ErrorCode::kUnknownMessage,
            "no message type '{}' at this door; the data door takes {}",
            shown(frames.type),
            kDataTypes
        );
    }
    if (frames.type != messages::Hello::kType &&
        is_admin_type != (door == messages::Door::kAdmin)) {
        return make_error(
            ErrorCode::kPermissionDenied,
            "'{}' belongs to the {} door",
            frames.type,
            is_admin_type ? "admin" : "data"
        );
    }
    if (!down_why_.empty()) return Error{ErrorCode::kUnavailable, down_why_};
    if (frames.type == messages::Hello::kType) return hello(door, peer, frames);
    if (!is_ready()) return starting();
    if (is_admin_type) {
        admin_time_ = now;
        return admin_.call(
            now, peer, frames, received.key.empty() ? ClientPlace::kHere : ClientPlace::kElsewhere
        );
    }
    if (frames.type == messages::Generate::kType) {
        ASSIGN_OR_RETURN(
            messages::Generate message, config_.identity.read<messages::Generate>(frames)
        );
        return generate(now, peer, std::move(message));
    }
    if (frames.type == messages::Cancel::kType) return cancel(peer, frames);
    if (frames.type == messages::RenderChat::kType) return render_chat(peer, frames);
    return tokenize(peer, frames);
}

Result<> Doors::hello(
    messages::Door door, const std::string& peer, const messages::Frames& frames
) {
    // A newer client may say more of itself than is known here.
    ASSIGN_OR_RETURN(
        const messages::Hello message,
        decode<messages::Hello>(frames, messages::UnknownFields::kIgnore)
    );
    if (!is_ready()) {
        answer_error(door, peer, frames, starting());  // not counted: it asks again until all is up
        return Ok{};
    }
    spdlog::debug("hello from '{}'", message.name.substr(0, kTypeShown));
    const messages::SchedulerHello& replica = *hellos_.front();
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
    reply.eos_ids = end_tokens();
    messages::Frames answer = encode(reply);
    add_tree(answer, config_.identity.id());
    outbox_.reply(door, peer, std::move(answer));
    return Ok{};
}

Result<> Doors::generate(TimePoint now, const std::string& peer, messages::Generate message) {
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
    if (auto problem = problem_of(message)) return *std::move(problem);
    if (message.rid.empty()) message.rid = random_rid();
    OpenRequest* request = requests_.add(peer, message.rid);
    if (request == nullptr) {
        return make_error(
            ErrorCode::kAlreadyExists, "rid '{}' is an open request of this client", message.rid
        );
    }
    Result<> started = Ok{};
    message.client = client_path(peer, std::move(message.client));
    if (message.text) {
        TextJob job{
            .id = std::exchange(next_job_, next(next_job_)),
            .client = message.client,
            .text = std::move(message.text)};
        request->generate = std::move(message);
        requests_.set_job(*request, job.id);
        started = start_job(now, std::move(job));
    } else {
        std::vector<TokenId> prompt = *std::exchange(message.input_ids, std::nullopt);
        started = dispatch(*request, std::move(message), std::move(prompt));
    }
    if (!started) close(*request);
    return started;
}

Result<> Doors::cancel(const std::string& peer, const messages::Frames& frames) {
    ASSIGN_OR_RETURN(
        const messages::Cancel message, config_.identity.read<messages::Cancel>(frames)
    );
    std::map<OpenId, OpenRequest*> found;  // an id may be named twice
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

void Doors::from_tree(TimePoint now, const bus::Received& received) {
    now_ = now;
    Result<> heard = received.refused ? Result<>(*received.refused) : hear(now, received.frames);
    if (heard) return;
    ++num_refused_;  // nobody to answer
    spdlog::warn("refused a message of the tree: {}", heard.error().message);
}

Result<> Doors::hear(TimePoint now, const messages::Frames& frames) {
    if (frames.type == messages::TextBatch::kType) {
        ASSIGN_OR_RETURN(
            messages::TextBatch batch,
            decode<messages::TextBatch>(frames, messages::UnknownFields::kIgnore)
        );
        deliver(now, std::move(batch));
        return Ok{};
    }
    if (frames.type == messages::SchedulerHello::kType) {
        ASSIGN_OR_RETURN(
            const messages::SchedulerHello hello,
            decode<messages::SchedulerHello>(frames, messages::UnknownFields::kIgnore)
        );
        RETURN_IF_ERROR(greet(hello));
        if (is_ready()) ready_time_ = now;
        return Ok{};
    }
    ASSIGN_OR_RETURN(const bool is_part, admin_.part(now, frames));
    if (is_part) return Ok{};
    return make_error(
        ErrorCode::kUnknownMessage, "'{}' is not for this process", shown(frames.type)
    );
}

Result<> Doors::greet(const messages::SchedulerHello& hello) {
    const auto index = static_cast<std::size_t>(raw(hello.replica));
    if (index >= hellos_.size() || hellos_[index]) {
        return make_error(
            ErrorCode::kAlreadyExists,
            "a hello of replica {}; there are {}, each once",
            raw(hello.replica),
            hellos_.size()
        );
    }
    if (hello.vocab_size <= 0 || hello.context_len <= 0 || hello.page_size <= 0 || hello.tp <= 0) {
        return make_error(
            ErrorCode::kInvalidArgument, "a hello of replica {} without sizes", raw(hello.replica)
        );
    }
    hellos_[index] = hello;
    ++num_hellos_;
    if (!is_ready()) return Ok{};
    const messages::SchedulerHello& first = *hellos_.front();
    for (const auto& other : hellos_) {
        if (other->digest != first.digest || other->vocab_size != first.vocab_size) {
            spdlog::error(
                "replicas 0 and {} hold different weights: {} and {}",
                raw(other->replica),
                first.digest,
                other->digest
            );
        }
    }
    choice_.emplace(config_.num_replicas, first.page_size);
    admin_.set_version(first, config_.weights_path, config_.lost);
    if (!config_.keep_committed.empty()) admin_.keep_in(now_, config_.keep_committed);
    return Ok{};
}

void Doors::deliver(TimePoint now, messages::TextBatch batch) {
    // First, as the chunks below close their requests.
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
        if (request == nullptr) continue;  // its client is gone
        const bool is_last = chunk.finish.has_value();
        chunk.key = RequestKey{};
        chunk.rid = request->rid;
        outbox_.add(request->peer, std::move(chunk));
        if (is_last) close(*request);
    }
    flush_outbox(now);
}

void Doors::to_control(ReplicaId replica, messages::Frames frames) {
    std::deque<messages::Frames>& held = held_control_[static_cast<std::size_t>(raw(replica))];
    if (held.empty() &&
        ports_.to_replica(replica, ReplicaSocket::kControl, frames) == bus::Sent::kSent) {
        return;
    }
    held.push_back(std::move(frames));  // bounded by open requests and open calls
}

void Doors::flush_control() {
    for (std::size_t i = 0; i < held_control_.size(); ++i) {
        std::deque<messages::Frames>& held = held_control_[i];
        const auto replica = static_cast<ReplicaId>(i);
        while (!held.empty() && ports_.to_replica(replica, ReplicaSocket::kControl, held.front()) ==
                                    bus::Sent::kSent) {
            held.pop_front();
        }
    }
}

void Doors::flush_outbox(TimePoint now) {
    outbox_.flush(now);
    lose_clients();
    for (const OpenId request : std::exchange(ended_, {})) admin_.request_ended(request);
}

// ---- time ----

void Doors::tick(TimePoint now) {
    flush_control();
    if (now >= next_probe_) {
        next_probe_ = now + Outbox::kProbeAfter;
        outbox_.probe(peers(), now);
    }
    flush_outbox(now);
    admin_.tick(now);
}

TimePoint Doors::next_deadline(TimePoint now) const {
    TimePoint first = std::min(admin_.next_deadline(), next_probe_);
    if (drain_until_) first = std::min(first, *drain_until_);
    const bool is_held =
        std::ranges::any_of(held_control_, [](const auto& held) { return !held.empty(); });
    if (is_held || outbox_.has_backlog()) first = std::min(first, now + kRetryAfter);
    return first;
}

void Doors::shut_down(TimePoint now, const std::string& why) {
    down_why_ = why;
    const Error error{ErrorCode::kUnavailable, why};
    for (OpenRequest* request : requests_.all()) fail(*request, error);
    while (!tokenize_calls_.empty()) end_call(tokenize_calls_.begin()->first, &error);
    flush_outbox(now);
    admin_.fail_all(error);
}

std::string Doors::who_is_missing() const {
    std::string names;
    for (std::size_t i = 0; i < hellos_.size(); ++i) {
        if (hellos_[i]) continue;
        names += fmt::format("{}scheduler_proc[{}]", names.empty() ? "" : ", ", i);
    }
    return names;
}

Error Doors::starting() const {
    return make_error(
        ErrorCode::kUnavailable, "the tree is starting; no word yet from {}", who_is_missing()
    );
}

std::string Doors::random_rid() const {
    return fmt::format("{:016x}{:016x}", ports_.random(), ports_.random());
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
