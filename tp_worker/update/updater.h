// A rank's part of weight updates and of memory releases: runs the scheduler's orders and answers
// them (messages/weights.h). Staging, digesting and reading happen in the background; commits and
// rollbacks happen here, between two passes.
//
// Thread: the loop's.
#pragma once

#include "base/fault_point.h"
#include "base/result.h"
#include "messages/groups.h"
#include "messages/keep.h"
#include "messages/memory.h"
#include "messages/update_orders.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"
#include "tp_worker/groups/groups.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/adapter_store.h"
#include "tp_worker/update/background.h"
#include "tp_worker/update/grammar_compiler.h"
#include "tp_worker/update/group_joins.h"
#include "tp_worker/update/keeper.h"
#include "tp_worker/update/memory_meter.h"
#include "tp_worker/update/staged_update.h"
#include "tp_worker/update/weight_reads.h"
#include "tp_worker/weights/pace.h"
#include "tp_worker/weights/weight_stage.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// Returns when an order with this timeout is late; never with 0.
[[nodiscard]] TimePoint deadline_of(std::int64_t timeout_ms);

// Returns the name of this rank's device in an ipc source's handles.
[[nodiscard]] std::string device_uuid(const Device& device, ReplicaId replica, Rank rank);

class Updater {
  public:
    // All outlive the updater.
    // `model_dir` has the tokenizer whose tokens grammars are compiled for.
    Updater(
        Engine& engine,
        Pace& pace,
        FaultPoint& fault_point,
        ReplicaPlace place = {},
        const std::string& model_dir = {}
    );
    ~Updater();
    Updater(const Updater&) = delete;
    Updater& operator=(const Updater&) = delete;

    // Prepares for --keep-committed: from now on there may be orders to keep a committed version.
    // Sets `args.answer`.
    void keep_in(Keeper::Args args);

    // The adapters, for settings that are made before any adapter is loaded.
    [[nodiscard]] AdapterStore& adapters() { return adapters_; }
    // Returns the update that is staged, if it is an adapter's.
    [[nodiscard]] std::optional<messages::UpdateId> adapter_update() const {
        return stage_ && stage_->is_of_adapter ? std::optional(stage_->update) : std::nullopt;
    }

    // Returns whether `type` is a message for handle_order().
    [[nodiscard]] static bool takes(std::string_view type);

    // Returns the answers that exist at once; later ones come from take_answers().
    // Errors: a violation of the protocol, such as a commit without a stage: this rank must end.
    Result<std::vector<messages::Frames>> handle_order(const messages::Frames& order);

    // The meter that reports this rank's memory from time to time, without an order.
    [[nodiscard]] MemoryMeter& meter() { return meter_; }

    // The descriptor to poll; when it is readable, call take_answers().
    [[nodiscard]] int fd() const { return background_.fd(); }
    std::vector<messages::Frames> take_answers();

  private:
    Result<std::vector<messages::Frames>> execute(messages::WorkerStage order);
    Result<std::vector<messages::Frames>> stage_adapter(messages::WorkerStage order);
    // ---- adapters (updater_adapters.cpp) ----
    [[nodiscard]] StageArgs args_for(StagedUpdate& stage, Adapter* adapter);
    Result<> open_adapter(StagedUpdate& stage);
    StageArgs args_for(Arena* target);
    static Result<> reserve_memory(StagedUpdate& stage, Arena* target, CopyLedger& ledger);
    Result<> exchange(Epoch epoch);
    [[nodiscard]] messages::Frames committed(const messages::WorkerCommit& order, TimePoint begin);
    void end_loan();
    Result<std::vector<messages::Frames>> execute(messages::WorkerFill order);
    Result<std::vector<messages::Frames>> execute(const messages::WorkerFinish& order);
    [[nodiscard]] bool may(messages::UpdateId update, messages::UpdateOrder order) {
        return stage_ && stage_->update == update && stage_->may(order);
    }
    [[nodiscard]] WeightReads::Live live() const {
        const bool is_written = stage_ && stage_->is_in_place;
        return is_written ? WeightReads::Live::kBeingWritten : WeightReads::Live::kAtRest;
    }
    void give(messages::UpdateOrder order, std::int64_t bucket, StagedUpdate::Job job);
    void give_stage(std::int64_t timeout_ms, StagedUpdate::Job prepare);
    Result<std::vector<messages::Frames>> execute(const messages::WorkerCommit& order);
    Result<std::vector<messages::Frames>> execute(const messages::WorkerDrop& order);
    Result<std::vector<messages::Frames>> execute(const messages::WorkerForget& order);
    Result<std::vector<messages::Frames>> execute(const messages::WorkerAdapters& order);
    Result<std::vector<messages::Frames>> execute(messages::WorkerCompile order);
    Result<std::vector<messages::Frames>> execute(const messages::WorkerReadTensor& order) {
        return reads_.read(order, live());
    }
    Result<std::vector<messages::Frames>> execute(const messages::WorkerDigest& order) {
        return reads_.digest(order, live());
    }
    Result<std::vector<messages::Frames>> execute(messages::WorkerMemory order);
    Result<std::vector<messages::Frames>> execute(messages::WorkerGroup order) {
        const TimePoint deadline = deadline_of(order.timeout_ms);
        return joins_.execute(std::move(order), deadline);
    }
    Result<std::vector<messages::Frames>> execute(const messages::WorkerKeep& step);
    void let_go(const Arena& memory);

    Engine& engine_;
    Pace& pace_;
    const Pace unpaced_{1.0};  // for small stages
    FaultPoint& fault_point_;
    Groups groups_;
    Worker worker_{};
    std::atomic<bool> is_over_{false};
    // The digests of the version in host memory, if updates are staged there, and of the live one;
    // empty if they could not be computed.
    std::vector<messages::PartDigest> host_digests_{};
    std::vector<messages::PartDigest> live_digests_{};
    // the copy that the last commit made live; null once it has changed
    const Arena* committed_ = nullptr;
    CopyLedger no_ledger_{/*copy=*/0, /*num_tensors=*/0};
    std::shared_ptr<StagedUpdate> stage_{};  // shared with its jobs, which may outlast a drop
    MemoryMeter meter_;
    // The destructor stops it before any member is destroyed: its jobs use the other members, and
    // some members answer through it.
    Background background_{};
    GroupJoins joins_{worker_, background_};
    WeightReads reads_{engine_, pace_, background_};
    std::unique_ptr<Keeper> keeper_{};
    AdapterStore adapters_{engine_, background_};
    GrammarCompiler grammar_compiler_;
};

}  // namespace pitstop::tp_worker
