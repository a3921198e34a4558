// One rank of a replica: executes orders in the order sent, as tp_worker does, over the oracle's
// model instead of tensors. Pure: the world decides when it runs and when its answers arrive.
#pragma once

#include "scheduler_proc/scheduler.h"
#include "tests/sim/oracle.h"

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
};

class ModelWorker {
  public:
    // How a stage goes on this rank.
    enum class StageFate { kGood, kRefused, kBroken, kOther };

    ModelWorker(int replica, Rank rank, const ModelShape& shape, int num_replicas, Oracle& oracle);

    [[nodiscard]] WorkerHello hello() const;

    StepResult run(const StepPlan& plan);
    // Begins a stage; its vote comes from finish_stage(). A second one without a drop is a bug.
    void begin_stage(const WorkerStage& order, StageFate fate);
    [[nodiscard]] bool is_staging(UpdateId update) const {
        return stage_ && stage_->update == update && !stage_->is_done;
    }
    WorkerStaged finish_stage();
    WorkerCommitted commit(const WorkerCommit& order);
    WorkerDropped drop(const WorkerDrop& order);
    // With `fails` nothing is done.
    WorkerMemoryDone change_memory(const WorkerMemory& order, bool fails);
    [[nodiscard]] WorkerDigests digests(CallId call) const;
    [[nodiscard]] WorkerTensor tensor(const WorkerReadTensor& order) const;

  private:
    struct Entry {  // of KV
        std::int64_t position = -1;
        TokenId token{};
        std::uint64_t chain = 0;  // of the tokens up to this one
        Epoch epoch{};
    };
    struct Slot {
        RequestSetup setup{};
        TokenId last{};
        bool is_set_up = false;
    };
    struct Stage {
        UpdateId update{};
        UpdateMode mode = UpdateMode::kStaged;
        StageFate fate = StageFate::kGood;
        WeightsId weights{};
        bool is_done = false;
        bool is_ok = false;
    };
    void run_row(
        const StepPlan& plan,
        const PlanRow& row,
        std::size_t first_token,
        std::size_t first_page,
        std::size_t first_target,
        StepResult& result
    );
    [[nodiscard]] std::vector<PartDigest> parts(WeightsId weights) const;
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
    std::set<MemoryTag> released_{};
    bool are_weights_gone_ = false;
    bool are_weights_kept_ = false;  // while they are released
    std::optional<Stage> stage_{};
    StepId last_step_{};
    std::vector<Entry> kv_{};  // [num_pages * page_size]; rank 0 only
    std::vector<Slot> slots_{};
};

// Which weights an update's label stands for.
[[nodiscard]] WeightsId weights_of(const std::string& label);

}  // namespace pitstop::sim
