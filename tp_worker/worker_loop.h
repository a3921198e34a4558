// Takes a plan, runs it and sends the result, again and again, for one rank.
//
// Everything the scheduler sends comes over one socket, in order, and is done in that order; so
// what stands between two plans takes effect between two forward passes, on every rank the same two
// (P1). Where the engine runs ahead (engine.h), a plan is enqueued while the last one runs;
// anything that is no plan waits for both.
//
// Thread: the main thread only.
#pragma once

#include "base/result.h"
#include "base/supervision.h"
#include "base/time.h"
#include "bus/socket.h"
#include "messages/codec.h"
#include "tp_worker/groups/bus_communicator.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/updater.h"
#include "tp_worker/weights/pace.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

class WorkerLoop {
  public:
    struct Args {
        Engine& engine;
        Updater& updater;
        Pace& pace;
        bus::Socket& scheduler;
        Supervision& supervision;
        BusCommunicator* head = nullptr;  // null where the scheduler is on this machine
    };
    explicit WorkerLoop(const Args& args);

    // Goes on until the launcher says stop or is gone. An error: this rank cannot go on.
    [[nodiscard]] Result<> run();

    // Fails where the scheduler does not take it.
    [[nodiscard]] Result<> send(const messages::Frames& frames);

  private:
    [[nodiscard]] bool is_over();
    // The head ends: the launcher of this machine is told. Errors: why it cannot go on.
    [[nodiscard]] Result<> look_at_head();
    [[nodiscard]] Result<> handle(const bus::Received& received);
    [[nodiscard]] Result<> handle_orders();
    [[nodiscard]] Result<> start(const messages::StepPlan& plan);
    // Waits for the steps under way, until `num` are left, and sends their results.
    [[nodiscard]] Result<> finish_steps(std::size_t num);
    // A step is under way and nothing else is to do.
    [[nodiscard]] Result<> watch_step();
    [[nodiscard]] bool has_result() const {
        return engine_.num_under_way() > 0 && engine_.is_over();
    }
    [[nodiscard]] TimePoint next_deadline();
    // What is no order to this worker changes nothing here and has nobody to answer. A plan that
    // cannot be read is another matter: its peers run it, so this rank must end.
    [[nodiscard]] Result<> drop(const Error& error);
    [[nodiscard]] Result<> send_all(const std::vector<messages::Frames>& all);

    Engine& engine_;
    Updater& updater_;
    Pace& pace_;
    bus::Socket& scheduler_;
    Supervision& supervision_;
    BusCommunicator* head_;
    bool has_head_ended_ = false;
    std::int64_t num_dropped_ = 0;
    TimePoint last_turn_{};  // an order came, or a result went
};

}  // namespace pitstop::tp_worker
