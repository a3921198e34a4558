// A whole tree in one thread with a virtual clock: the real scheduler cores, the real update
// coordinator, model workers, links that delay and reorder, and clients that do everything at the
// worst moment. One seed, one schedule.
#pragma once

#include "scheduler_proc/scheduler.h"
#include "tests/sim/fairness_book.h"
#include "tests/sim/model_worker.h"
#include "tests/sim/oracle.h"
#include "tests/sim/pusher.h"
#include "tests/sim/random.h"
#include "tests/sim/session_book.h"
#include "tokenizer_proc/update_coordinator.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

namespace pitstop::sim {

// What one schedule came to.
struct Report {
    std::optional<std::string> problem{};
    std::int64_t num_events = 0;
    std::int64_t num_requests = 0;
    std::int64_t num_tokens = 0;
    std::int64_t num_requests_split = 0;
    std::int64_t num_spans_mixed = 0;
    std::int64_t num_cache_hits = 0;
    std::int64_t num_commits = 0;
    std::int64_t num_drops = 0;
    std::int64_t num_torn = 0;
    std::int64_t num_retractions = 0;
    std::int64_t num_calls = 0;
    std::int64_t num_releases = 0;
    std::int64_t num_discards = 0;  // of weights
    std::int64_t num_sessions = 0;  // begun
    std::int64_t num_buckets = 0;
    std::int64_t num_sessions_committed = 0;
    std::int64_t num_sessions_expired = 0;
};

class World {
  public:
    explicit World(std::uint64_t seed);
    Report run();

  private:
    using Event = std::function<void()>;
    struct Timed {
        TimePoint at{};
        std::uint64_t order = 0;  // among equals: first come
        std::shared_ptr<Event> event{};
        friend bool operator>(const Timed& a, const Timed& b) {
            return a.at != b.at ? a.at > b.at : a.order > b.order;
        }
    };
    // Keeps order, delays at random. Two links keep no order between them.
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
        std::unique_ptr<FairnessBook> fairness{};  // null: not looked at
        scheduler::TurnInput inbox{};
        bool is_turn_due = false;
        bool is_down = false;  // it said so itself
        TimePoint wake_at = TimePoint::max();
        Link requests{};
        Link control{};
        Link to_tokenizer{};
        std::vector<Rank> ranks{};
    };
    // A call to all replicas, and which have answered.
    struct Call {
        std::string name{};
        TimePoint deadline{};
        std::vector<int> num_answers{};
        bool is_exempt = false;  // workers answer it: a stuck one does not
    };

    void at(TimePoint when, Event event);
    void after(Duration delay, Event event) { at(now_ + delay, std::move(event)); }
    void deliver(Link& link, Event event);
    [[nodiscard]] Duration some(std::int64_t low_us, std::int64_t high_us);

    void make_turn(std::size_t replica);
    void turn(std::size_t replica);
    void route(std::size_t replica, scheduler::TurnOutput out);
    void hear(std::size_t replica, scheduler::ToTokenizer message);
    void read_batch(const messages::TokenBatch& batch);
    void order(std::size_t replica, std::size_t rank, const scheduler::ToWorkers& message);
    void work(std::size_t replica, std::size_t rank);
    void answer(std::size_t replica, std::size_t rank, scheduler::FromWorker message);
    void answer_later(
        std::size_t replica, std::size_t rank, Duration takes, const ModelWorker::Task& task
    );
    [[nodiscard]] ModelWorker::StageFate fate_of(std::size_t replica, std::size_t rank) const;
    void control(std::size_t replica, scheduler::Control message);

    void act();  // something random
    void submit();
    std::vector<std::string> some_client();
    void end_some();
    void call_all(
        std::string name,
        std::int64_t timeout_ms,
        const std::function<scheduler::Control(CallId)>& make,
        bool is_exempt = false
    );
    void answered(CallId call, std::size_t replica);
    using Heard = std::function<void(const messages::UpdateReply&)>;
    void start_update(bool is_good);
    void start_push(bool is_dependable);
    void go_on(std::size_t pusher);
    void commit_any();
    void drop_any(std::int64_t timeout_ms);
    void draw_fate(bool is_good);
    void watch_drop(messages::UpdateId update);
    void coordinate(const std::function<void(tokenizer::UpdateCoordinator::Out&)>& what);
    [[nodiscard]] tokenizer::UpdateCoordinator::Caller caller(
        std::int64_t timeout_ms, Heard heard = {}
    );
    void tick_coordinator();

    void advance_until(TimePoint end);
    void check();
    void check_calls();
    void settle_down();
    void push_to_the_end();
    [[nodiscard]] bool is_quiet() const;
    [[nodiscard]] bool needs_update() const;
    [[nodiscard]] SessionBook::Base base() const;
    std::vector<messages::MemoryTag> some_tags();
    [[nodiscard]] std::string describe() const;  // where everything stands, for a failure

    Random random_;
    Oracle oracle_{};
    Report report_{};
    ModelShape shape_{};
    int num_replicas_ = 1;
    int num_hellos_ = 0;
    bool is_fair_ = true;       // or first come, first served
    bool has_prefixes_ = true;  // that prompts share
    bool has_faults_ = false;   // ranks may get stuck, messages come twice
    bool is_active_ = true;     // the faults have not stopped yet
    TimePoint now_{};
    std::uint64_t next_order_ = 0;
    std::priority_queue<Timed, std::vector<Timed>, std::greater<>> events_{};
    std::vector<Replica> replicas_{};
    tokenizer::UpdateCoordinator coordinator_{1};
    std::uint64_t next_key_ = 1;
    std::uint64_t next_call_ = 1;
    std::uint64_t next_weights_ = 1;
    std::map<RequestKey, std::size_t> placed_{};  // open requests and their replica
    std::map<std::uint64_t, Call> calls_{};
    struct UpdateCall {
        TimePoint deadline{};
        int num_answers = 0;
        Heard heard{};
    };
    std::map<std::uint64_t, UpdateCall> update_calls_{};
    std::vector<std::unique_ptr<Pusher>> pushers_{};
    SessionBook sessions_{shape_, oracle_};
    messages::UpdateId dropping_{};  // if the last order was to drop
    bool stuck_any_ = false;
    ModelWorker::StageFate next_fate_ = ModelWorker::StageFate::kGood;
    int fate_replica_ = 0;
    int fate_rank_ = 0;
};

}  // namespace pitstop::sim
