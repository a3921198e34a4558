// One rank of a replica: executes orders in the order sent, as tp_worker does, over the oracle's
// model instead of tensors. Pure: the world decides when it runs and when its answers arrive.
#pragma once

#include "scheduler_proc/scheduler.h"
#include "tests/sim/oracle.h"
#include "tests/sim/state_book.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace pitstop::sim {

struct ModelShape {
    int tp = 1;
    std::int64_t num_pages = 32;
    std::int64_t page_size = 4;
    std::int64_t num_slots = 8;
    std::int64_t context_len = 64;
    bool lends = false;                             // --update-mode lend
    std::optional<std::int64_t> num_checkpoints{};  // absent: a request has no recurrent state
    std::optional<messages::RouteShape> routes{};   // absent: the model has no experts
};

inline constexpr std::int64_t kAdapterBytes = 1000;

// The weights that an update's label stands for.
[[nodiscard]] WeightsId weights_of(const std::string& label);
// The content of a session after a bucket with these bytes is added to it.
[[nodiscard]] WeightsId with_bytes(WeightsId weights, const std::string& bytes);
// The digests of a rank's parts of these weights.
[[nodiscard]] std::vector<messages::PartDigest> parts_of(WeightsId weights, Rank rank, int tp);
// The digest of these weights, on all ranks.
[[nodiscard]] std::string version_digest_of(WeightsId weights, int tp);

class ModelWorker {
  public:
    // The result of a stage on this rank.
    enum class StageFate { kGood, kRefused, kBroken, kOther };

    // A rank's background work for an update: a bucket (0: opening the session), or the whole stage
    // that its vote is about.
    struct Task {
        messages::UpdateId update{};
        std::optional<std::int64_t> bucket{};
        friend bool operator==(const Task&, const Task&) = default;
    };

    // The content that a commit makes live here. `bytes` names the buckets that brought it.
    struct Staged {
        messages::UpdateId update{};
        std::set<std::string> bytes{};
        bool is_whole = false;
        bool stands_alone = false;  // one call with a part, which opened its own session
        bool is_of_adapter = false;
    };

    ModelWorker(int replica, Rank rank, const ModelShape& shape, int num_replicas, Oracle& oracle);

    [[nodiscard]] messages::WorkerHello hello() const;

    // The rank's true content, for the world's checks.
    [[nodiscard]] Epoch epoch() const { return epoch_; }
    [[nodiscard]] WeightsId weights() const { return live_; }
    [[nodiscard]] bool is_torn() const { return is_torn_; }
    [[nodiscard]] bool has_weights() const { return !are_weights_gone_; }
    [[nodiscard]] std::optional<Staged> staged() const;
    [[nodiscard]] bool has_stage() const { return stage_.has_value(); }

    // A plan arrives; it runs later.
    void expect(const messages::StepPlan& plan);
    messages::StepResult run(const messages::StepPlan& plan);
    [[nodiscard]] const StateBook& states() const { return states_; }
    // Each begins a task, whose answer comes from finish(). A second stage without a drop is a bug,
    // as is a bucket or an end without a stage.
    Task begin_stage(const messages::WorkerStage& order, StageFate fate);
    Task begin_fill(const messages::WorkerFill& order, StageFate fate);
    Task begin_finish(const messages::WorkerFinish& order);
    // Returns whether the task's stage still exists.
    [[nodiscard]] bool is_at(const Task& task) const { return stage_ && stage_->task == task; }
    scheduler::FromWorker finish(const Task& task);
    messages::WorkerCommitted commit(const messages::WorkerCommit& order);
    messages::WorkerDropped drop(const messages::WorkerDrop& order);
    // If `fails`, changes nothing and reports a failure.
    messages::WorkerMemoryDone change_memory(const messages::WorkerMemory& order, bool fails);
    // ---- adapters ----
    // The weights of that version; absent: it is not here.
    [[nodiscard]] std::optional<WeightsId> adapter(messages::AdapterId id) const;
    void forget(messages::AdapterId id);
    void evict(messages::AdapterId id);
    void note_not_evicted(messages::AdapterId id);
    messages::WorkerRestored restore(std::uint64_t order, messages::AdapterId id);
    [[nodiscard]] std::int64_t num_adapters() const {
        return std::ssize(adapters_) + std::ssize(evicted_);
    }
    // The version that the last commit of the name replaced, until another stage of it begins.
    [[nodiscard]] std::optional<messages::AdapterId> previous_adapter(const std::string& name
    ) const;
    [[nodiscard]] messages::WorkerDigests digests(CallId call) const;
    [[nodiscard]] messages::WorkerTensor tensor(const messages::WorkerReadTensor& order) const;

  private:
    struct Entry {  // of KV
        std::int64_t position = -1;
        TokenId token{};
        std::uint64_t chain = 0;  // hash of the tokens up to this one
        Epoch epoch{};
        StepId step{};  // the step that computed it
        bool is_finite = true;
        std::optional<messages::AdapterId> adapter{};
        std::uint64_t brought = 0;  // hash of the routes brought for the tokens up to this one
    };
    static constexpr TokenId kNoToken{-1};
    struct Slot {
        messages::RequestSetup setup{};
        TokenId last{};  // kNoToken: the latest output's logits or scores were not finite
        bool is_set_up = false;
    };
    struct Stage {
        messages::UpdateId update{};
        messages::UpdateMode mode = messages::UpdateMode::kStaged;
        StageFate fate = StageFate::kGood;
        WeightsId weights{};
        std::optional<Task> task{};
        bool is_ok = false;  // this rank has voted yes
        std::int64_t num_missing = 0;
        std::set<std::string> bytes{};  // of the buckets so far
        bool is_whole = false;
        bool stands_alone = false;
        std::string adapter{};  // not empty: the weights are this adapter's
        messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish;
        bool is_pinned = false;
        std::optional<messages::AdapterId> begins_as{};
        bool is_rollback = false;
        bool is_sparse = false;
    };
    // A row, and where its part of each of the plan's arrays begins.
    struct PlacedRow {
        const messages::StepPlan& plan;
        messages::PlanRow row{};
        std::int64_t index = 0;
        std::size_t first_token = 0;
        std::size_t first_page = 0;
        std::size_t first_target = 0;
        std::size_t first_brought = 0;  // rows of routes
        WeightsId weights{};            // the weights that compute the row
    };
    // The context that a row has read: its tokens as a chain, and the epochs of their KV.
    struct Context {
        std::uint64_t chain = 0;
        Epochs kv{};
        bool is_finite = true;
        TokenId last_token{};
        bool is_lent = false;  // it begins on KV that is not finite, from a pass in progress
        std::optional<messages::NotFiniteRow> bad{};  // the row's first token that is not finite
        std::optional<messages::AdapterId> oldest_adapter{};  // oldest version in its KV
        std::uint64_t brought = 0;  // the routes that the request brings for its tokens so far
        RouteBook::Row routes{};    // brought for the current token; empty: none
    };
    void run_row(const PlacedRow& placed, messages::StepResult& result);
    // The place of a position's KV; null: on no page of this worker.
    [[nodiscard]] Entry* entry_of(const PlacedRow& placed, std::int64_t position);
    // The context in the pages must be this request's, computed under versions that it accepts.
    // Returns what is wrong with it, or nothing.
    [[nodiscard]] std::optional<std::string> read_context(
        const PlacedRow& placed, RequestKey key, Context& context
    );
    // The state that the row continues from must be that of this context.
    [[nodiscard]] std::optional<std::string> read_state(
        const PlacedRow& placed, RequestKey key, Context& context
    );
    // Writes the KV of the row's own tokens, which must be the request's next tokens.
    [[nodiscard]] std::optional<std::string> write_context(
        const PlacedRow& placed, const Slot& slot, Context& context, messages::StepResult& result
    );
    void score(
        const PlacedRow& placed,
        RequestKey key,
        const Context& context,
        messages::StepResult& result
    );
    // Samples the row's output number `index`.
    void sample(
        const PlacedRow& placed,
        std::int64_t index,
        Slot& slot,
        Context& context,
        messages::StepResult& result
    );
    [[nodiscard]] std::optional<std::string> verify_drafts(
        const PlacedRow& placed, Slot& slot, Context& context, messages::StepResult& result
    );
    [[nodiscard]] static TokenId planned_token(const PlacedRow& placed, std::int64_t position);
    [[nodiscard]] std::optional<std::string> write_token(
        const PlacedRow& placed,
        TokenId token,
        std::int64_t position,
        bool has_logits,
        Context& context
    );
    // Takes the plan's routes for a token, which must be those that its request brings.
    [[nodiscard]] std::optional<std::string> begin_routes(
        const PlacedRow& placed, RequestKey key, std::int64_t position, Context& context
    );
    // Reports the routes of the context's last token, if the plan wants them.
    void end_routes(
        const PlacedRow& placed,
        std::int64_t position,
        const Context& context,
        messages::StepResult& result
    ) const;
    void advance_state(const messages::PlanRow& row, const Context& context);
    // Returns the weights that an adapter has after this stage, or before its first bucket.
    [[nodiscard]] WeightsId adapter_weights_of(const messages::WorkerStage& order);
    void begin_adapter(const messages::WorkerStage& order, StageFate fate, const Task& task);
    void commit_adapter(messages::AdapterId id, Epoch number);
    // Returns the weights that compute the row: an adapter that it names must be in memory.
    [[nodiscard]] WeightsId weights_of_row(const messages::PlanRow& row);
    void add_bytes(const std::string& bytes);
    void spoil();
    [[nodiscard]] messages::RankOutcome outcome_of_stage() const;
    [[nodiscard]] messages::WorkerStaged vote();
    [[nodiscard]] std::vector<messages::PartDigest> parts(WeightsId weights) const {
        return parts_of(weights, rank_, shape_.tp);
    }
    void fail(const std::string& what);

    int replica_;
    Rank rank_;
    ModelShape shape_;
    int num_replicas_;
    Oracle& oracle_;
    Epoch epoch_{1};
    WeightsId live_{};
    bool is_torn_ = false;
    std::optional<WeightsId> retained_{};
    std::set<messages::MemoryTag> released_{};
    bool are_weights_gone_ = false;
    bool are_weights_kept_ = false;  // while they are released
    std::optional<Stage> stage_{};
    std::map<messages::AdapterId, WeightsId> adapters_{};  // in memory
    std::map<messages::AdapterId, WeightsId> evicted_{};
    std::map<std::string, messages::AdapterId> newest_adapters_{};  // committed last, by name
    std::map<std::string, messages::AdapterId> previous_adapters_{};
    StepId last_step_{};
    std::vector<Entry> kv_{};  // [num_pages * page_size]; rank 0 only
    std::vector<Slot> slots_{};
    StateBook states_;  // rank 0 only
};

}  // namespace pitstop::sim
