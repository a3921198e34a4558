// A rank's part of weight updates: orders from the scheduler in, answers out (messages/weights.h).
// Staging, digesting and reading go to the background; commits and rollbacks happen here, between
// two passes.
//
// Thread: the loop's.
#pragma once

#include "base/fault_point.h"
#include "base/result.h"
#include "messages/memory.h"
#include "messages/weights.h"
#include "tp_worker/background.h"
#include "tp_worker/engine.h"
#include "tp_worker/pace.h"

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace pitstop {

class Updater {
  public:
    // All outlive the updater.
    Updater(Engine& engine, Pace& pace, FaultPoint& fault_point);
    ~Updater();
    Updater(const Updater&) = delete;
    Updater& operator=(const Updater&) = delete;

    // Whether `type` is a message for obey().
    [[nodiscard]] static bool takes(std::string_view type);

    // Answers that are there at once; others come from take_answers() later.
    // Errors: the order breaks the protocol (a commit of what is not staged): this rank must end.
    Result<std::vector<Frames>> obey(const Frames& order);

    // To be polled; then take_answers().
    [[nodiscard]] int fd() const { return background_.fd(); }
    std::vector<Frames> take_answers();

  private:
    struct Stage {
        UpdateId update{};
        UpdateMode mode = UpdateMode::kStaged;
        std::atomic<bool> is_dropped{false};
        std::atomic<bool> is_prepared{false};
    };

    Result<std::vector<Frames>> stage(WorkerStage order);
    Result<std::vector<Frames>> commit(const WorkerCommit& order);
    Result<std::vector<Frames>> drop(const WorkerDrop& order);
    Result<std::vector<Frames>> read_tensor(const WorkerReadTensor& order);
    Result<std::vector<Frames>> digest(const WorkerDigest& order);
    Result<std::vector<Frames>> change(WorkerMemory order);
    Frames refusal(const WorkerStage& order, Error error) const;

    Engine& engine_;
    Pace& pace_;
    FaultPoint& fault_point_;
    std::shared_ptr<Stage> stage_{};  // shared with its job, which may outlast a drop
    Background background_{};         // last: its jobs use the rest
};

}  // namespace pitstop
