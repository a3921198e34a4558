// Workers for tests. They run plans in the order sent, as real workers do. Their KV store remembers
// the token, position, prefix and epoch of each entry. The token that they "sample" is a function
// of the whole context as read back from the pages. So wrong sharing of a page, an early release or
// a second fill shows in the output, or at once in `problems`.
#pragma once

#include "messages/steps.h"
#include "messages/version_digest.h"
#include "scheduler_proc/scheduler.h"
#include "tests/scheduler_proc/fake_states.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

struct FakeModel {
    int tp = 1;
    std::int64_t num_pages = 64;
    std::int64_t page_size = 4;
    std::int64_t num_slots = 8;
    std::int64_t context_len = 256;
    std::int64_t vocab_size = 1000;
    std::vector<TokenId> eos_ids{TokenId{1}};
    std::uint64_t weights = 0;    // a number per model
    Epoch epoch{1};               // of the loaded weights; a later one after a restart
    bool has_weights = true;      // false: the workers wait for a first update
    bool lends = false;           // --update-mode lend
    std::int64_t eos_one_in = 0;  // one in this many contexts ends; 0: none
    std::int64_t nan_one_in = 0;  // one in this many contexts has logits that are not finite
    std::optional<messages::RouteShape> routes{};  // nothing: no experts
    TokenId overflowing{-1};  // from this token on, nothing in a context is finite
    std::int64_t adapter_rank_max = 8;
    std::int64_t state_bytes = 0;      // of a request; 0: it has no recurrent state
    std::int64_t num_checkpoints = 0;  // places for copies of such a state
    std::int64_t drafted_max = 32;     // drafts of a row

    // This model with that version of an adapter.
    [[nodiscard]] FakeModel adapted(std::optional<messages::AdapterId> adapter) const;
};

// The model's continuation of this context, as a list of token ids. An independent statement of
// what requests must get: it uses neither pages nor steps. kNoToken: the logits are not finite.
inline constexpr TokenId kNoToken{-1};
[[nodiscard]] TokenId fake_next_token(
    const FakeModel& model,
    std::span<const TokenId> context,
    const messages::SamplingParams& sampling,
    std::span<const TokenId> stop_ids,
    std::int64_t output_index
);
[[nodiscard]] float fake_logprob(
    const FakeModel& model, std::span<const TokenId> context, TokenId token
);
// The rank of this token in this context: a number derived from both.
[[nodiscard]] std::int32_t fake_rank(std::span<const TokenId> context, TokenId token);
// The i-th most probable token after this context, for top logprobs.
[[nodiscard]] TokenId fake_top_token(
    const FakeModel& model, std::span<const TokenId> context, std::int64_t i
);

// The row of routes of this context's last token.
[[nodiscard]] std::vector<std::uint8_t> fake_routes(
    const FakeModel& model, std::span<const TokenId> context
);

class FakeWorkers {
  public:
    explicit FakeWorkers(FakeModel model);

    [[nodiscard]] std::vector<FromWorker> hellos() const;

    // Queues a message, as each rank's socket would.
    void receive(ToWorkers message);
    [[nodiscard]] bool is_idle() const { return queue_.empty(); }
    [[nodiscard]] std::size_t num_queued() const { return queue_.size(); }
    [[nodiscard]] std::size_t num_plans_queued() const;

    // Executes the oldest queued message. Returns every rank's answer, rank 0's first.
    std::vector<FromWorker> run_one();

    // A forbidden effect of a plan; empty: none.
    [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }
    [[nodiscard]] std::int64_t num_tokens_run() const { return num_tokens_run_; }
    [[nodiscard]] const std::vector<messages::StepPlan>& plans() const { return plans_; }
    [[nodiscard]] Epoch epoch() const { return epoch_; }
    [[nodiscard]] const std::set<messages::AdapterId>& adapters() const { return adapters_; }
    [[nodiscard]] const std::set<messages::AdapterId>& evicted() const { return evicted_; }
    // Returns the first loaded version with the same tensors. A rollback loads no tensors: its
    // version has those of an earlier version.
    [[nodiscard]] messages::AdapterId origin_of(messages::AdapterId id) const {
        const auto place = origins_.find(id);
        return place == origins_.end() ? id : place->second;
    }
    [[nodiscard]] std::optional<messages::AdapterId> origin_of(std::optional<messages::AdapterId> id
    ) const {
        return id ? std::optional(origin_of(*id)) : std::nullopt;
    }
    // The last order to stage.
    [[nodiscard]] const messages::WorkerStage& last_stage() const { return last_stage_; }
    [[nodiscard]] const FakeModel& model() const { return model_; }

    // The weights that the next stage brings; without this they stay unchanged.
    std::optional<std::uint64_t> staged_weights{};
    // Ranks that vote no on the next stage, and why.
    std::vector<std::optional<std::string>> stage_failures{};
    // Ranks that fail the next order about memory, and why; used once.
    std::vector<std::optional<std::string>> memory_failures{};
    // Every order about memory.
    [[nodiscard]] const std::vector<messages::WorkerMemory>& memory_orders() const {
        return memory_orders_;
    }
    // Ranks that cannot restore this version, and why.
    std::map<messages::AdapterId, std::vector<std::optional<Error>>> restore_failures{};
    // Ranks that cannot evict this version, and why.
    std::map<messages::AdapterId, std::vector<std::optional<Error>>> eviction_failures{};
    // Ranks that do not answer stages and orders about memory or adapters.
    std::vector<bool> is_silent{};
    // By rank: does not answer commits and drops.
    std::vector<bool> never_ends{};

    // The oldest and newest epoch of the KV, as the last row of this key and output index read it
    // from the pages.
    [[nodiscard]] EpochRange kv_of(RequestKey key, std::int64_t output_index) const;

  private:
    struct Entry {
        TokenId token{-1};
        std::int64_t position = -1;
        std::uint64_t prefix = 0;  // hash of all tokens up to this one, and of their adapters
        Epoch epoch{};
    };
    struct Slot {
        std::optional<messages::RequestSetup> setup{};
        TokenId sampled{-1};
        // (position, adapter): the tokens from this position on have this adapter.
        std::vector<std::pair<std::int64_t, std::optional<messages::AdapterId>>> adapters{};
    };
    // A row, and its first index in each of the plan's arrays.
    struct PlacedRow {
        const messages::StepPlan& plan;
        messages::PlanRow row{};
        std::int64_t index = 0;
        std::size_t first_token = 0;
        std::size_t first_page = 0;
        std::size_t first_target = 0;
    };
    // The entries that a row has read from its pages, and its own tokens as they are written.
    struct Context {
        std::vector<TokenId> tokens{};
        EpochRange read{};
        std::uint64_t prefix = 0;
        void append(TokenId token, Epoch epoch, std::optional<messages::AdapterId> adapter);
    };
    messages::StepResult run(const messages::StepPlan& plan);
    void run_row(const PlacedRow& placed, messages::StepResult& result);
    TokenId sample(
        const PlacedRow& placed,
        std::int64_t index,
        const FakeModel& model,
        const Context& context,
        messages::StepResult& result
    );
    [[nodiscard]] Entry& entry_of(const PlacedRow& placed, std::int64_t position);
    void read_context(const PlacedRow& placed, Context& context);
    void read_state(const PlacedRow& placed, const Context& context);
    // The top tokens, and the ids whose logprobs the request asked for.
    template <class Logprobs>
    static void add_alternatives(
        const FakeModel& model,
        const messages::RequestSetup& setup,
        std::span<const TokenId> context,
        Logprobs& logprobs
    );

    // Every rank's answers to an order, rank 0 first.
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::StepPlan& plan);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerStage& stage);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerCommit& commit);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerDrop& drop);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerForget& order);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerAdapters& order);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerMemory& order);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerReadTensor& read);
    [[nodiscard]] std::vector<FromWorker> answers_to(const messages::WorkerDigest& order);
    // This model has no sessions: their orders are not answered.
    template <class Order>
    [[nodiscard]] static std::vector<FromWorker> answers_to(const Order& /*order*/) {
        return {};
    }
    messages::WorkerMemoryDone change_memory(const messages::WorkerMemory& order, Rank rank);
    void fail(const messages::StepPlan& plan, const std::string& what);
    void check_pages(const messages::StepPlan& plan);
    [[nodiscard]] std::uint64_t staged_weights_of(const messages::WorkerStage& stage) const;
    void check_beginning(const messages::WorkerStage& stage);
    [[nodiscard]] std::vector<messages::PartDigest> digests(std::uint64_t weights, Rank rank) const;

    FakeModel model_;
    std::vector<Entry> kv_;  // [num_pages * page_size]
    std::vector<Slot> slots_;
    FakeStates states_;
    std::deque<ToWorkers> queue_{};
    std::vector<messages::StepPlan> plans_{};
    std::vector<std::string> problems_{};
    std::vector<messages::WorkerMemory> memory_orders_{};
    std::vector<std::set<messages::MemoryTag>> released_{};  // by rank
    std::map<std::pair<RequestKey, std::int64_t>, EpochRange> kv_read_{};
    std::set<messages::AdapterId> adapters_{};
    std::set<messages::AdapterId> evicted_{};
    std::map<messages::AdapterId, messages::AdapterId> origins_{};
    std::optional<messages::UpdateId> staged_adapter_{};
    messages::WorkerStage last_stage_{};
    Epoch epoch_{1};
    std::uint64_t retained_weights_ = 0;
    std::uint64_t shadow_weights_ = 0;
    std::int64_t num_tokens_run_ = 0;
};

}  // namespace pitstop::scheduler
