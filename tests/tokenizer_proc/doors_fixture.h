// Doors with vectors for sockets: the messages to each peer are in memory, and a client may be made
// slow or gone.
#pragma once

#include "messages/codec.h"
#include "tests/source_dir.h"
#include "tokenizer_proc/doors.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

namespace pitstop::tokenizer {

class DoorsTest : public testing::Test {
  protected:
    static constexpr std::int64_t kContextLen = 1024;
    static constexpr std::int64_t kVocabSize = 2048;

    static void SetUpTestSuite() {
        if (tokenizer_) return;
        auto loaded = text::Tokenizer::load(source_dir() + "/launch/models/stories");
        CHECK(loaded.has_value());
        tokenizer_ = *loaded;
    }

    void make(int num_replicas) {
        doors_.emplace(
            Doors::Config{
                .identity = identity_,
                .server = "pitstop test",
                .model = "stories",
                .aliases = {"actor"},
                .model_path = "/models/stories",
                .weights_path = weights_path_,
                .lost = lost_,
                .restart = restart_,
                .keep_committed = keep_committed_,
                .num_replicas = num_replicas,
                .end_token = end_token_,
                .chat_template = chat_template_},
            tokenizer_
        );
    }

    // Runs a turn and sends its messages, as the loop does. Runs another turn if a message could
    // not be sent, and further turns while any is due.
    void turn(DoorsInput in = {}) {
        turn_once(std::move(in));
        if (is_anything_unsent()) turn_once({});
        while (wake_at_ <= now_ && !is_anything_unsent()) turn_once({});
    }

    void say_hello(int replica) {
        messages::SchedulerHello hello;
        hello.replica = ReplicaId{replica};
        hello.model_type = "llama";
        hello.context_len = context_len_;
        hello.vocab_size = kVocabSize;
        hello.pool_tokens = 4096;
        hello.page_size = 16;
        hello.queue_len_max = 100;
        hello.tp = ranks_;
        hello.eos_ids = eos_ids_;
        hello.epoch = Epoch{1};
        hello.digest = "d1";
        hello.has_weights = has_weights_;
        hello.routes = routes_;
        hello.dense_layers = dense_layers_;
        from_tree(hello);
    }
    void start(int num_replicas = 1) {
        make(num_replicas);
        for (int i = 0; i < num_replicas; ++i) say_hello(i);
    }

    template <class Message>
    void from_tree(const Message& message) {
        turn({.from_tree = {bus::Received{.frames = encode(message)}}});
    }
    void from_client(
        const std::string& peer,
        messages::Frames frames,
        messages::Door door = messages::Door::kData
    ) {
        turn({.from_clients = {{door, bus::Received{.peer = peer, .frames = std::move(frames)}}}});
    }
    template <class Message>
    void send(
        const std::string& peer, const Message& message, messages::Door door = messages::Door::kData
    ) {
        send_for(identity_.id(), peer, message, door);
    }
    // Sends a message that names this tree.
    template <class Message>
    void send_for(
        const std::string& tree,
        const std::string& peer,
        const Message& message,
        messages::Door door = messages::Door::kData
    ) {
        messages::Frames frames = encode(message);
        if (Message::kType != messages::Hello::kType) add_tree(frames, tree);
        from_client(peer, std::move(frames), door);
    }
    void wait(std::chrono::milliseconds time) {
        now_ += time;
        turn();
    }

    static messages::Generate prompt(
        const std::string& rid, const std::string& text = "Once upon a time"
    ) {
        messages::Generate message;
        message.rid = rid;
        message.text = text;
        message.sampling.max_new_tokens = 8;
        return message;
    }

    // The next message of this type to that client or replica; without one, the test ends.
    template <class Message>
    Message next_to(const std::string& peer, messages::Door door = messages::Door::kData) {
        return take<Message>(to_client_[{door, peer}]);
    }
    template <class Message>
    Message next_to_replica(int replica, ReplicaSocket which) {
        return take<Message>(to_replica_[{replica, which}]);
    }
    [[nodiscard]] bool has_message(
        const std::string& peer, messages::Door door = messages::Door::kData
    ) {
        return !to_client_[{door, peer}].empty();
    }
    [[nodiscard]] bool has_message_to_replica(
        int replica, ReplicaSocket which = ReplicaSocket::kControl
    ) {
        return !to_replica_[{replica, which}].empty();
    }
    messages::TokenizedRequest next_request(int replica = 0) {
        return next_to_replica<messages::TokenizedRequest>(replica, ReplicaSocket::kRequests);
    }
    messages::EndRequests next_end(int replica = 0) {
        return next_to_replica<messages::EndRequests>(replica, ReplicaSocket::kControl);
    }
    messages::ErrorReply refusal(
        const std::string& peer, messages::Door door = messages::Door::kData
    ) {
        return next_to<messages::ErrorReply>(peer, door);
    }

    void finish_job(TextDone done) { turn({.texts = {std::move(done)}}); }
    // Runs the text jobs, in place of the other thread.
    void finish_jobs() {
        for (TextJob& job : std::exchange(jobs_, {}))
            finish_job(run_job(*tokenizer_, std::move(job)));
    }

    static messages::OutputChunk chunk(
        RequestKey key, const std::string& text, bool is_last = false
    ) {
        messages::OutputChunk chunk;
        chunk.key = key;
        chunk.text = text;
        chunk.tokens = {TokenId{1}};
        if (is_last) chunk.finish = messages::Finish{.reason = messages::FinishReason::kLength};
        return chunk;
    }
    void deliver(std::vector<messages::OutputChunk> chunks, std::vector<RequestKey> stopped = {}) {
        messages::TextBatch batch;
        batch.chunks = std::move(chunks);
        batch.stopped = std::move(stopped);
        from_tree(batch);
    }

    messages::StatusReply status() {
        messages::Status call;
        call.call = CallId{77};
        send("status", call, messages::Door::kAdmin);
        for (int i = 0; to_replica_.contains({i, ReplicaSocket::kControl}); ++i) {
            messages::ReplicaStatus part;
            part.call = next_to_replica<messages::Status>(i, ReplicaSocket::kControl).call;
            part.replica = ReplicaId{i};
            part.has_weights = has_weights_;
            from_tree(part);
        }
        return next_to<messages::StatusReply>("status", messages::Door::kAdmin);
    }

    inline static std::shared_ptr<const text::Tokenizer> tokenizer_;
    const TreeIdentity identity_{1, 2};
    std::int64_t ranks_ = 1;
    std::string tree_of_last_{};  // the tree that the last message names
    TimePoint now_ = TimePoint{} + std::chrono::hours(1);
    std::map<std::pair<messages::Door, std::string>, std::deque<messages::Frames>> to_client_{};
    std::map<std::pair<int, ReplicaSocket>, std::deque<messages::Frames>> to_replica_{};
    std::vector<TextJob> jobs_{};
    std::vector<JobId> cancelled_jobs_{};
    std::shared_ptr<const ChatTemplate> chat_template_{};
    std::set<std::string> gone_{};
    std::set<std::string> full_{};
    bool replica_is_full_ = false;
    bool job_queue_is_full_ = false;
    std::uint64_t random_ = 0;
    std::int64_t context_len_ = kContextLen;
    bool has_weights_ = true;
    std::optional<messages::RouteShape> routes_{};
    std::vector<std::int64_t> dense_layers_{};
    std::vector<TokenId> eos_ids_{};      // of the model
    std::optional<TokenId> end_token_{};  // of the tokenizer
    std::string weights_path_ = "/models/stories";
    std::optional<messages::LostVersion> lost_{};
    Restart restart_{};
    Unfinished unfinished_{};  // in the last message to the launcher
    std::string keep_committed_{};
    std::vector<ServedVersion> served_{};    // in a message to the launcher
    std::size_t num_answers_at_served_ = 0;  // answers to "admin" before that message
    TimePoint wake_at_{};                    // the result of the last turn
    std::optional<Doors> doors_{};

  private:
    void turn_once(DoorsInput in) {
        in.now = now_;
        in.entropy = {++random_, 0};
        in.unsent_to_clients = std::exchange(unsent_to_clients_, {});
        in.unsent_to_replicas = std::exchange(unsent_to_replicas_, {});
        for (TextDone& refused : std::exchange(refused_jobs_, {}))
            in.texts.push_back(std::move(refused));
        DoorsOutput out = doors_->turn(std::move(in));
        if (out.unfinished) unfinished_ = *out.unfinished;
        for (const ServedVersion& version : out.serves) {
            served_.push_back(version);
            num_answers_at_served_ = to_client_[{messages::Door::kAdmin, "admin"}].size();
        }
        for (ToReplica& message : out.to_replicas) {
            if (replica_is_full_) {
                unsent_to_replicas_.push_back(std::move(message));
            } else {
                to_replica_[{raw(message.replica), message.socket}].push_back(message.frames);
            }
        }
        for (ToClient& message : out.to_clients) {
            if (gone_.contains(message.peer)) {
                unsent_to_clients_.push_back({std::move(message), bus::Sent::kGone});
            } else if (full_.contains(message.peer)) {
                unsent_to_clients_.push_back({std::move(message), bus::Sent::kFull});
            } else {
                to_client_[{message.door, message.peer}].push_back(std::move(message.frames));
            }
        }
        for (TextJob& job : out.jobs) {
            if (job_queue_is_full_)
                refused_jobs_.push_back(
                    {.id = job.id, .error = Error{ErrorCode::kResourceExhausted, "full"}}
                );
            jobs_.push_back(std::move(job));
        }
        cancelled_jobs_.insert(cancelled_jobs_.end(), out.cancelled.begin(), out.cancelled.end());
        wake_at_ = out.wake_at;
    }
    [[nodiscard]] bool is_anything_unsent() const {
        return !unsent_to_clients_.empty() || !unsent_to_replicas_.empty() ||
               !refused_jobs_.empty();
    }

    std::vector<UnsentToClient> unsent_to_clients_{};
    std::vector<ToReplica> unsent_to_replicas_{};
    std::vector<TextDone> refused_jobs_{};

    template <class Message>
    Message take(std::deque<messages::Frames>& queue) {
        for (auto place = queue.begin(); place != queue.end(); ++place) {
            if (place->type != Message::kType) continue;
            messages::Frames frames = *place;
            const Result<std::string> tree = take_tree(frames);
            CHECK(tree.has_value());
            tree_of_last_ = *tree;
            auto message = decode<Message>(frames, messages::UnknownFields::kRefuse);
            CHECK(message.has_value());
            queue.erase(place);
            return *std::move(message);
        }
        std::string types;
        for (const messages::Frames& frames : queue) types += frames.type + " ";
        throw std::runtime_error(
            fmt::format("no '{}' was sent; there is: {}", Message::kType, types)
        );
    }
};

}  // namespace pitstop::tokenizer
