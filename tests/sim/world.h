// A whole tree in one thread with a virtual clock: the real doors, the real scheduler cores, model
// workers, links that delay and reorder, and clients that do everything at the worst moment. One
// seed gives one schedule. Doors and schedulers run in turns: messages in, messages out.
#pragma once

#include "messages/codec.h"
#include "scheduler_proc/scheduler.h"
#include "tests/sim/collection_book.h"
#include "tests/sim/fairness_book.h"
#include "tests/sim/model_worker.h"
#include "tests/sim/oracle.h"
#include "tests/sim/pusher.h"
#include "tests/sim/random.h"
#include "tests/sim/session_book.h"
#include "tests/sim/trainer_book.h"
#include "tokenizer_proc/doors.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pitstop::sim {

// The results of one schedule.
struct Report {
    std::optional<std::string> problem{};
    std::int64_t num_events = 0;
    std::int64_t num_requests = 0;
    std::int64_t num_tokens = 0;
    std::int64_t num_requests_split = 0;
    std::int64_t num_spans_mixed = 0;
    std::int64_t num_cache_hits = 0;
    std::int64_t num_scores_checked = 0;
    std::int64_t num_scorings_cut = 0;
    std::int64_t num_commits = 0;
    std::int64_t num_drops = 0;
    std::int64_t num_torn = 0;
    std::int64_t num_not_finite = 0;        // requests that ended for a value that is not finite
    std::int64_t num_not_finite_again = 0;  // such requests sent again
    std::int64_t num_told_serving = 0;      // answers that name the serving version
    std::int64_t num_words_withheld = 0;    // drops whose `torn` was cleared
    std::int64_t num_late_answers = 0;      // second answers to an order of an update
    std::int64_t num_retractions = 0;
    std::int64_t num_drafted = 0;
    std::int64_t num_drafts_accepted = 0;
    std::int64_t num_states_saved = 0;
    std::int64_t num_states_restored = 0;
    std::int64_t num_states_evicted = 0;
    std::int64_t num_tokens_replayed = 0;  // computed again: no saved state
    std::int64_t num_calls = 0;
    std::int64_t num_releases = 0;
    std::int64_t num_discards = 0;  // calls that discard weights
    std::int64_t num_sessions = 0;  // that have begun
    std::int64_t num_buckets = 0;
    std::int64_t num_sessions_committed = 0;
    std::int64_t num_sessions_expired = 0;
    std::int64_t num_sessions_taken_over = 0;
    std::int64_t num_sessions_mixed = 0;    // given up for a call with another label
    std::int64_t num_sessions_lacking = 0;  // given up for a refused call of the same trainer
    std::int64_t num_unnamed_buckets = 0;
    std::int64_t num_collected = 0;  // calls without a session that were to become one update
    std::int64_t num_collections_committed = 0;
    std::int64_t num_collections_lost = 0;
    std::int64_t num_sets_whole = 0;     // of two calls or more of a trainer, that took effect
    std::int64_t num_sets_mixed = 0;     // versions of several trainers' calls, by the stated rules
    std::int64_t num_trainers_told = 0;  // that their calls were lost
    std::int64_t num_texts = 0;          // encoded on the other thread
    std::int64_t num_adapter_loads = 0;
    std::int64_t num_adapter_rollbacks = 0;
    std::int64_t num_adapter_parts = 0;
    std::int64_t num_adapter_sparse_parts = 0;
    std::int64_t num_adapter_sessions = 0;  // that have begun
    std::int64_t num_adapter_sessions_committed = 0;
    std::int64_t num_adapter_sessions_expired = 0;
    // of calls that load, change in part, and roll back; also the refused ones
    std::array<std::int64_t, 3> num_adapter_calls_failed{};
    std::int64_t num_adapter_tokens = 0;
    std::int64_t num_adapter_tokens_mixed = 0;  // whose KV an older version made
    std::int64_t num_adapter_evictions = 0;
    std::int64_t num_adapters_not_evicted = 0;
    std::int64_t num_adapter_restores = 0;
    std::int64_t num_adapters_forgotten = 0;
    std::int64_t num_route_rows = 0;
    std::int64_t num_route_rows_brought = 0;
    std::int64_t num_routes_mixed = 0;  // requests with rows of several versions
};

class World {
  public:
    // An answer may come this long after its deadline: the time for a replica's own answer or for a
    // drop, and the time that turns and links take.
    static constexpr auto kAnswerSlack =
        std::chrono::milliseconds(50) +
        std::max(tokenizer::kReplicaGrace, tokenizer::TreeUpdate::kDropGrace);

    // kYes: schedules also load adapters.
    enum class Adapters { kNo, kYes };
    // kYes: requests also bring routes and ask for routes.
    enum class Experts { kNo, kYes };
    explicit World(
        std::uint64_t seed, Adapters adapters = Adapters::kNo, Experts experts = Experts::kNo
    );
    Report run();

  private:
    using Event = std::function<void()>;
    struct Timed {
        TimePoint at{};
        std::uint64_t order = 0;  // at equal times: first come, first served
        std::shared_ptr<Event> event{};
        friend bool operator>(const Timed& a, const Timed& b) {
            return a.at != b.at ? a.at > b.at : a.order > b.order;
        }
    };
    // A link keeps the order of its messages, and delays them at random. Two links have no common
    // order.
    struct Link {
        TimePoint last{};
    };
    struct Rank {
        std::unique_ptr<ModelWorker> worker{};
        std::deque<scheduler::ToWorkers> orders{};
        bool is_busy = false;
        bool is_stuck = false;  // never answers again
        Link to{};
        Link from{};
    };
    struct Replica {
        std::unique_ptr<scheduler::Scheduler> core{};
        std::unique_ptr<FairnessBook> fairness{};  // null: not checked
        scheduler::TurnInput inbox{};
        bool is_turn_due = false;
        bool is_down = false;  // the core has given up
        TimePoint wake_at = TimePoint::max();
        Link requests{};
        Link control{};
        Link to_tokenizer{};
        Link to_detokenizer{};
        std::vector<Rank> ranks{};
    };
    using Heard = std::function<void(const messages::UpdateReply&)>;
    // A call at the admin door.
    struct Call {
        std::string name{};
        std::string peer = "caller";
        std::string adapter{};  // that it names
        TimePoint deadline{};
        int num_answers = 0;
        bool is_of_workers = false;               // workers answer it; a stuck worker does not
        Heard heard{};                            // called with the answer to an update
        bool is_of_trainer = false;               // a trainer's call without a session
        bool is_held = false;                     // the call may wait for an update
        std::vector<messages::MemoryTag> tags{};  // the tags that it resumes; empty: all
        std::optional<Epoch> newer_than{};        // an ok answer means that a later version serves
        std::int64_t num_dropped = 0;             // collections dropped before the call
        bool is_after_loss = false;               // the answer must not be ok
        std::optional<std::vector<TokenId>> ids{};  // of the text that the call encodes
    };
    // A client of the data door.
    struct Client {
        std::map<std::string, bool> open{};  // rid -> no end reported yet
        TimePoint reads_again_at{};
        bool is_gone = false;
    };

    void at(TimePoint when, Event event);
    void after(Duration delay, Event event) { at(now_ + delay, std::move(event)); }
    void deliver(Link& link, Event event);
    [[nodiscard]] Duration some(std::int64_t low_us, std::int64_t high_us);

    void make_turn(std::size_t replica);
    void turn(std::size_t replica);
    void route(std::size_t replica, scheduler::TurnOutput out);
    void handle(const scheduler::ToTokenizer& message);
    void read_batch(std::size_t replica, const messages::TokenBatch& batch);
    void order(std::size_t replica, std::size_t rank, const scheduler::ToWorkers& message);
    void work(std::size_t replica, std::size_t rank);
    void answer(std::size_t replica, std::size_t rank, scheduler::FromWorker message);
    void answer_later(
        std::size_t replica, std::size_t rank, Duration takes, const ModelWorker::Task& task
    );
    void repeat_late(Event event);
    void withhold_torn(std::size_t replica, messages::UpdateDrop& drop);
    [[nodiscard]] ModelWorker::StageFate fate_of(std::size_t replica, std::size_t rank) const;
    void draw_fate(bool is_good);

    // ---- doorway.cpp ----
    void tell_doors(messages::Frames frames);
    void turn_of_doors(tokenizer::DoorsInput in);
    void say_frames(const std::string& peer, messages::Door door, messages::Frames frames);
    template <class Message>
    void say(const std::string& peer, messages::Door door, const Message& message) {
        say_frames(peer, door, encode(message));
    }
    // Makes a call. It must be answered once, by its deadline.
    template <class Message>
    void call(Message message, std::int64_t timeout_ms, Heard heard = {}) {
        message.call = CallId{next_call_++};
        message.timeout_ms = timeout_ms;
        ++report_.num_calls;
        constexpr bool kGoesOn = std::is_same_v<Message, messages::ContinueGeneration>;
        constexpr bool kMayWait = kGoesOn || std::is_same_v<Message, messages::ResumeMemory> ||
                                  std::is_same_v<Message, messages::UpdateWeights> ||
                                  std::is_same_v<Message, messages::UpdateBucket> ||
                                  std::is_same_v<Message, messages::UnloadAdapter>;
        std::optional<Epoch> newer_than;
        if (kGoesOn && updates().is_collecting() && !updates().is_collecting_all())
            newer_than = updates().version().epoch;
        std::vector<messages::MemoryTag> tags;
        if constexpr (std::is_same_v<Message, messages::ResumeMemory>) tags = message.tags;
        std::string adapter;
        if constexpr (requires { message.update.adapter; }) adapter = message.update.adapter;
        constexpr bool kIsOfWorkers = std::is_same_v<Message, messages::WeightDigests> ||
                                      std::is_same_v<Message, messages::GetWeights>;
        calls_[raw(message.call)] = {
            .name = std::string(Message::kType),
            .peer = caller_,
            .adapter = adapter,
            .deadline = now_ + std::chrono::milliseconds(timeout_ms) + kAnswerSlack,
            .is_of_workers = kIsOfWorkers,
            .heard = std::move(heard),
            .is_of_trainer = caller_ != "caller",
            .is_held = kMayWait && updates().is_busy(),
            .tags = tags,
            .newer_than = newer_than,
            .num_dropped = collections_.num_dropped,
            .is_after_loss = kGoesOn && collections_.is_lost(updates().version().epoch) &&
                             !updates().must_be_complete()};
        say(caller_, messages::Door::kAdmin, message);
    }
    void watch_order(const messages::Frames& frames);
    void watch_order(const tokenizer::ReplicaOrder& order);
    void send_to_replica(const tokenizer::ToReplica& message);
    void send_to_clients(std::vector<tokenizer::ToClient> messages);
    void heard_by_client(const tokenizer::ToClient& message);
    void heard_of_request(const std::string& peer, const std::string& rid, bool is_end);
    void heard_of_call(const messages::Frames& frames);
    void heard_of_refusal(const Call& call, const Error& why);
    void heard_to_go_on(const Call& call, std::uint64_t id, const messages::Frames& frames);
    [[nodiscard]] const tokenizer::UpdateCoordinator& updates() const {
        return doors_->admin().updates();
    }

    // ---- texts.cpp ----
    static std::shared_ptr<const text::Tokenizer> tokenizer();
    std::string some_text();
    void ask_tokenize();
    void cancel_text();
    void take_jobs(std::vector<tokenizer::TextJob> jobs);
    void cancel_jobs(const std::vector<tokenizer::JobId>& cancelled);
    void finish_job(tokenizer::JobId id);
    void check_prompt(const messages::TokenizedRequest& request);
    void check_tokens(const Call& call, const messages::Frames& frames);

    // ---- callers.cpp, pushes.cpp ----
    void act();  // something random
    void submit();
    void add_drafts(messages::Generate& request);
    void add_routes(messages::Generate& request) const;
    static void add_conversation(messages::Generate& request);
    void submit_again();
    std::vector<std::string> some_client();
    void end_some();
    void release_some();
    void start_update(bool is_good);
    void end_or_undo_update();
    // ---- loads.cpp ----
    enum class AdapterCall { kLoad, kChange, kRollBack };
    std::string some_adapter();
    void act_on_adapters();
    void call_for_adapter(AdapterCall made, const std::string& name, int num_tries);
    [[nodiscard]] Heard heard_of_adapter(AdapterCall made, const std::string& name, int num_tries);
    [[nodiscard]] messages::UpdateSpec load_of(AdapterCall made, const std::string& name);
    void submit_with_adapters();
    bool work_on_adapters(std::size_t r, std::size_t k, const scheduler::ToWorkers& order);
    void check_adapters(std::size_t replica);
    // ---- adapter_pushes.cpp ----
    void start_adapter_push();
    void note_drop(const messages::UpdateDrop& drop);
    void heard_of_part(const Call& call, const Error& why);
    void check_last_drop();
    void check_told_of_adapter(const Call& call, const messages::UpdateReply& reply);
    bool note_adapter(const ModelWorker::Staged& staged);
    void check_versions(std::size_t replica);
    void check_nothing_staged();
    // ---- pushes.cpp ----
    void start_push(bool is_dependable);
    void collected(const std::string& bytes, const messages::UpdateReply& reply);
    void heard_of_bytes(
        const std::string& bytes,
        const Pusher::Call& call,
        std::uint64_t loss,
        const messages::UpdateReply& reply,
        const std::string& adapter
    );
    void tell_trainers_of(
        std::size_t i,
        const Pusher::Call& call,
        const std::string& bytes,
        const messages::UpdateReply& reply
    );
    void go_on(std::size_t pusher);
    // A trainer that names no session and begins none.
    struct Collector {
        std::string name{};
        std::int64_t num_left = 0;  // calls until it lets generation go on
        std::int64_t num_sent = 0;
        bool names_version = false;  // labels its calls with its own name
        bool shares_gpu = false;     // KV is released while it trains
        bool is_unnamed = false;     // calls name no session, as over HTTP
        bool is_mortal = false;      // vanishes on the way
        bool is_stubborn = false;    // sends refused calls again
    };
    template <class Message>
    void call_as(
        const std::string& who, Message message, std::int64_t timeout_ms, Heard heard = {}
    ) {
        caller_ = who;
        call(std::move(message), timeout_ms, std::move(heard));
        caller_ = "caller";
    }
    void start_collecting();
    void collect(Collector trainer);
    void go_on(const Collector& trainer);
    void send_collected(const Collector& trainer, const std::string& bytes, Heard heard);
    void tell_trainers(const std::string& bytes, const messages::UpdateReply& reply);
    [[nodiscard]] bool is_publishing() const;
    [[nodiscard]] bool ends_standstill(const std::vector<messages::MemoryTag>& tags) const;
    void commit_any();
    void drop_any(std::int64_t timeout_ms);
    void watch_drop(messages::UpdateId update);

    void advance_until(TimePoint end);
    void check();
    void check_calls();
    void check_clients();
    void check_not_finite();
    void check_told(const messages::UpdateReply& reply);
    void check_whole(std::size_t replica, std::size_t rank);
    void settle_down();
    void push_to_the_end();
    [[nodiscard]] bool is_quiet() const;
    [[nodiscard]] bool needs_update() const;
    [[nodiscard]] SessionBook::Base base() const;
    std::vector<messages::MemoryTag> some_tags();
    [[nodiscard]] std::string describe() const;  // the world's state, for a failure

    Random random_;
    Oracle oracle_{};
    Report report_{};
    ModelShape shape_{};
    int num_replicas_ = 1;
    bool is_fair_ = true;       // false: first come, first served
    bool has_prefixes_ = true;  // that prompts share
    bool has_faults_ = false;   // ranks may get stuck, and messages arrive twice
    bool is_active_ = true;     // the faults have not stopped yet
    bool has_adapters_;
    Random apart_;  // for adapters alone: schedules without them stay the same
    std::map<messages::UpdateId, std::string> loads_{};  // the adapters of updates
    std::set<messages::UpdateId> loads_in_effect_{};
    struct Drop {
        TimePoint at{};
        messages::UpdateId update{};
        std::string reason{};
        std::string stranger{};     // an adapter with a call that was refused in these words
        bool is_explained = false;  // by the refusal of a call that may be a part of the update
    };
    std::set<messages::UpdateId> dropped_{};
    Drop last_drop_{};
    std::map<std::string, std::string> adapter_digests_{};  // of the latest answers, by name
    TimePoint now_{};
    std::uint64_t next_order_ = 0;
    std::priority_queue<Timed, std::vector<Timed>, std::greater<>> events_{};
    std::vector<Replica> replicas_{};
    const tokenizer::TreeIdentity identity_{1, 2};
    std::unique_ptr<tokenizer::Doors> doors_{};
    // Each replica's last report of its pause and its memory.
    std::map<ReplicaId, messages::ReplicaStanding> standings_{};
    std::vector<tokenizer::UnsentToClient> unsent_to_clients_{};
    std::vector<tokenizer::ToReplica> unsent_to_replicas_{};
    std::optional<TimePoint> doors_wake_at_{};  // a turn of the doors is scheduled then
    std::map<std::string, Client> clients_{};   // by peer
    std::uint64_t next_request_ = 1;
    std::uint64_t next_call_ = 1;
    std::uint64_t next_weights_ = 1;
    std::string caller_ = "caller";  // the client that makes the next call
    std::int64_t num_collectors_ = 0;
    struct Placed {
        RequestKey key{};
        std::string peer{};
        std::string rid{};
        std::optional<std::vector<TokenId>> prompt{};  // of its text
    };
    std::vector<Placed> placed_{};  // requests sent to a replica, in that order
    Placed submitting_{};           // the request that is being submitted
    CallId submitting_call_{};
    struct Job {
        Placed placed{};
        CallId call{};  // 0: the job is a request's
        std::string text{};
    };
    std::map<tokenizer::JobId, Job> jobs_{};  // on the other thread
    std::uint64_t next_text_ = 1;
    std::map<std::uint64_t, Call> calls_{};
    std::vector<std::unique_ptr<Pusher>> pushers_{};
    SessionBook sessions_{shape_, oracle_};
    CollectionBook collections_{oracle_};
    TrainerBook trainers_{oracle_};
    std::set<Epoch> took_effect_{};
    messages::UpdateId dropping_{};  // the update that the last order dropped
    bool stuck_any_ = false;
    std::optional<bool>
        fate_ordered_{};  // whether an order of the current call was for a valid stage
    ModelWorker::StageFate next_fate_ = ModelWorker::StageFate::kGood;
    int fate_replica_ = 0;
    std::optional<int> fate_rank_{};  // absent: all ranks of that replica
    bool may_tear_ = false;           // a live copy may have been overwritten
};

}  // namespace pitstop::sim
