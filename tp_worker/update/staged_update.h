// The update that a rank stages: the memory that it fills, and the progress of its orders. The loop
// shares it with its jobs, which may outlast a drop.
//
// Once the stage is ordered, its spec and the memory that it fills belong to the background.
//
// Thread:  the loop's, except for run().
// Bounded: one order at a time.
#pragma once

#include "base/result.h"
#include "messages/frames.h"
#include "messages/update_orders.h"
#include "messages/update_round.h"
#include "messages/weights.h"
#include "tp_worker/sources/source.h"
#include "tp_worker/update/adapter_store.h"
#include "tp_worker/weights/weight_stage.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace pitstop::tp_worker {

// Makes a vote of no: nothing was changed.
[[nodiscard]] messages::Frames refusal_of(const messages::WorkerStage& order, Rank rank, Error why);

class StagedUpdate {
  public:
    using Job = std::function<Result<>(StagedUpdate&)>;

    explicit StagedUpdate(messages::WorkerStage order)
        : update(order.update),
          spec(std::move(order.spec)),
          begins_as(order.begins_as),
          is_rollback(order.rollback),
          is_of_adapter(!spec.adapter.empty()) {}

    messages::UpdateId update{};
    messages::UpdateSpec spec{};
    std::optional<messages::AdapterId> begins_as{};  // the version that it changes
    bool is_rollback = false;  // the update has no bytes: `begins_as` is staged again
    bool is_of_adapter = false;
    bool is_in_place = false;             // whether the update fills the live copy
    HostCopy* host = nullptr;             // the host memory to fill; null: device memory
    StagedAdapter adapter{};              // the adapter to load, made by the background
    std::atomic<bool> is_dropped{false};  // set by the loop
    std::optional<WeightStage> fill{};
    CudaMappings mappings{};  // used by the background; closed when all bytes have arrived

    // Returns whether the order is allowed now: the scheduler sends an order only after the answer
    // to the last one.
    [[nodiscard]] bool may(messages::UpdateOrder order);
    // Records that the rank has stopped. Orders about the model's weights arrive between two
    // passes; an adapter's orders need no stop.
    void stand();
    // Begins to fill an adapter that is open. Thread: the background's, within run().
    void begin_fill(const StageArgs& args);
    // Records that the order is being carried out. REQUIRES: may(order).
    void begin(messages::UpdateOrder order) { round_.ask(order); }
    // Runs the job of the order that was begun, and returns its answer. `bucket`: 0 opens a
    // session. Thread: the background's.
    [[nodiscard]] messages::Frames run(
        messages::UpdateOrder order, std::int64_t bucket, const Job& job
    );

  private:
    messages::UpdateRound round_{1};  // the background is the only participant
    std::atomic<std::optional<messages::UpdateRound::Answer>> answer_{};  // from the background
};

}  // namespace pitstop::tp_worker
