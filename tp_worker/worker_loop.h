// Receives a plan, runs it and sends the result, again and again, for one rank.
//
// Everything from the scheduler arrives over one socket, and is done in order. So an order between
// two plans takes effect between two forward passes, on every rank between the same two (P1). If
// the engine runs ahead (engine.h), a plan is enqueued while the last one runs; any other order
// waits for the steps of both.
//
// A pass on a CPU is computed by this thread. Between two blocks of a pass the thread also sends
// votes, and takes the orders of an adapter's update, which change no pass that was planned before:
// a load does not wait for passes.
//
// Thread: the main thread only.
#pragma once

#include "base/result.h"
#include "base/supervision.h"
#include "base/time.h"
#include "bus/socket.h"
#include "messages/codec.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/ranks/bus_communicator.h"
#include "tp_worker/update/updater.h"
#include "tp_worker/weights/pace.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
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
        Communicator& communicator;       // the host's
        BusCommunicator* head = nullptr;  // null if the scheduler is on this machine
    };
    explicit WorkerLoop(const Args& args);

    // Runs until the launcher says stop or is gone. An error: this rank cannot continue.
    [[nodiscard]] Result<> run();

    // Fails if the scheduler does not accept the message.
    [[nodiscard]] Result<> send(const messages::Frames& frames);

  private:
    [[nodiscard]] bool is_over();
    // Checks whether the head's machine has ended the replica, and tells this machine's launcher.
    // Errors: why the replica cannot continue.
    [[nodiscard]] Result<> look_at_head();
    [[nodiscard]] Result<> handle(const bus::Received& received);
    [[nodiscard]] Result<> handle_orders();
    [[nodiscard]] std::optional<bus::Received> next_order();
    // Called between two blocks of a pass.
    [[nodiscard]] Result<> look_between();
    [[nodiscard]] bool may_overtake(const bus::Received& received) const;
    [[nodiscard]] Result<> start(const messages::StepPlan& plan);
    // Waits for the steps in progress, until `num` are left, and sends their results.
    [[nodiscard]] Result<> finish_steps(std::size_t num);
    // Waits for the step in progress, when there is nothing else to do.
    [[nodiscard]] Result<> watch_step();
    [[nodiscard]] bool has_result() const {
        return engine_.num_under_way() > 0 && engine_.is_over();
    }
    [[nodiscard]] TimePoint next_deadline();
    // A message that is not an order to this worker changes nothing here, and has no sender to
    // answer. But if a plan cannot be read, this rank must end, because its peers run the plan.
    [[nodiscard]] Result<> drop(const Error& error);
    [[nodiscard]] Result<> send_all(const std::vector<messages::Frames>& all);

    Engine& engine_;
    Updater& updater_;
    Pace& pace_;
    bus::Socket& scheduler_;
    Supervision& supervision_;
    BusCommunicator* head_;
    bool is_asked_to_end_ = false;  // kept, because a line of the launcher is read only once
    bool has_head_ended_ = false;
    std::int64_t num_dropped_ = 0;
    TimePoint last_turn_{};                // an order arrived, or a result was sent
    TimePoint next_look_{};                // between two blocks
    std::deque<bus::Received> waiting_{};  // arrived during a pass
};

}  // namespace pitstop::tp_worker
