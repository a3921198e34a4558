#include "tp_worker/worker_loop.h"

#include "base/log.h"
#include "base/time.h"
#include "bus/poller.h"
#include "messages/adapters.h"
#include "messages/steps.h"
#include "messages/update_orders.h"
#include "tp_worker/update/adapter_orders.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr auto kIdle = std::chrono::seconds(60);
// After this long without a message the worker has time for KV memory: the next plan of a running
// request arrives sooner.
constexpr auto kIdleBeforeTouch = std::chrono::milliseconds(2);
// The time in which the scheduler answers a result with a plan, unless it has nothing to run.
constexpr auto kPlanIsDue = std::chrono::milliseconds(100);
// How often a pass is interrupted for a look at orders, which takes some microseconds.
constexpr auto kBetweenLooks = std::chrono::milliseconds(1);
// Messages that wait for the end of a pass; others wait in the socket.
constexpr std::size_t kWaitingMax = 16;
// A stage overtakes orders to forget at most this many versions of adapters. Their memory is freed
// only after the pass. So a rank has at most one version more than --adapter-memory allows.
constexpr std::size_t kForgottenMax = 1;

}  // namespace

WorkerLoop::WorkerLoop(const Args& args)
    : engine_(args.engine),
      updater_(args.updater),
      pace_(args.pace),
      scheduler_(args.scheduler),
      supervision_(args.supervision),
      head_(args.head) {
    // On a GPU this thread only enqueues passes, or captures them, and orders wait for their steps.
    // On a GPU, the model of a single rank also uses the host's communicator, so nothing is set.
    if (!args.engine.device().is_cuda())
        args.communicator.set_between([this] { return look_between(); });
}

Result<> WorkerLoop::run() {
    bus::Poller poller;
    const std::size_t orders = poller.add(scheduler_);
    const std::size_t answers = poller.add_fd(updater_.fd());
    if (supervision_.fd() >= 0) poller.add_fd(supervision_.fd());
    if (head_ != nullptr) head_->add_to(poller);
    while (true) {
        updater_.meter().measure_if_due(Clock::now());
        KvAhead* const kv_ahead = engine_.kv_ahead();
        const bool touches = kv_ahead != nullptr && kv_ahead->is_behind();
        TimePoint deadline = next_deadline();
        if (touches) deadline = std::min(deadline, Clock::now() + kIdleBeforeTouch);
        poller.wait(deadline);  // the only place where this process waits for work
        if (is_over()) return Ok{};
        RETURN_IF_ERROR(look_at_head());
        if (poller.is_ready(answers)) RETURN_IF_ERROR(send_all(updater_.take_answers()));
        if (poller.is_ready(orders) || !waiting_.empty()) {
            Result<> handled = handle_orders();
            if (is_over()) return Ok{};  // a peer that ends regularly has the same result
            RETURN_IF_ERROR(look_at_head());
            if (!has_head_ended_) RETURN_IF_ERROR(std::move(handled));
        } else if (engine_.wants_graph() && !has_result()) {
            RETURN_IF_ERROR(engine_.make_graph());
            updater_.meter().touch();
        } else if (engine_.num_under_way() > 0) {
            RETURN_IF_ERROR(watch_step());
        } else if (touches && !poller.is_ready(answers)) {
            kv_ahead->touch_some();
            updater_.meter().touch();
        }
    }
}

// Returns now while a step is in progress, because a GPU has no file descriptor to poll. While the
// GPU runs the step, a graph is made as soon as there is nothing else to do.
TimePoint WorkerLoop::next_deadline() {
    const TimePoint now = Clock::now();
    if (engine_.num_under_way() > 0 || engine_.wants_graph() || !waiting_.empty()) return now;
    TimePoint deadline = now + kIdle;
    if (const auto due = updater_.meter().due()) deadline = std::min(deadline, *due);
    return deadline;
}

Result<> WorkerLoop::handle_orders() {
    for (int i = 0; i < bus::kMessagesPerTurnMax; ++i) {
        const std::optional<bus::Received> received = next_order();
        if (!received) break;
        RETURN_IF_ERROR(handle(*received));
        if (is_over()) return Ok{};
        // Sends votes first: under load the next plan has already arrived, and votes must not wait
        // for the last plan.
        RETURN_IF_ERROR(send_all(updater_.take_answers()));
    }
    return Ok{};
}

std::optional<bus::Received> WorkerLoop::next_order() {
    if (waiting_.empty()) return scheduler_.receive();
    bus::Received first = std::move(waiting_.front());
    waiting_.pop_front();
    return first;
}

Result<> WorkerLoop::look_between() {
    if (Clock::now() < next_look_) return Ok{};
    RETURN_IF_ERROR(send_all(updater_.take_answers()));
    while (waiting_.size() < kWaitingMax) {
        std::optional<bus::Received> received = scheduler_.receive();
        if (!received) break;
        if (!may_overtake(*received)) {
            // A load that overtakes an unload finds the room that the unload has made.
            for (const messages::AdapterId id : forgotten_by(received->frames))
                updater_.adapters().unpin(id);
            waiting_.push_back(*std::move(received));
            continue;
        }
        ASSIGN_OR_RETURN(
            const std::vector<messages::Frames> replies, updater_.handle_order(received->frames)
        );
        RETURN_IF_ERROR(send_all(replies));
    }
    next_look_ = Clock::now() + kBetweenLooks;
    return Ok{};
}

// An order may overtake orders to forget: they concern versions of earlier updates.
bool WorkerLoop::may_overtake(const bus::Received& received) const {
    if (received.refused || !is_of_adapter(received.frames, updater_.adapter_update()))
        return false;
    std::size_t num_forgotten = 0;
    for (const bus::Received& each : waiting_) {
        if (each.refused || (each.frames.type != messages::StepPlan::kType &&
                             each.frames.type != messages::WorkerForget::kType))
            return false;
        num_forgotten += forgotten_by(each.frames).size();
    }
    return received.frames.type != messages::WorkerStage::kType || num_forgotten <= kForgottenMax;
}

Result<> WorkerLoop::send(const messages::Frames& frames) {
    if (scheduler_.send(frames) == bus::Sent::kSent) return Ok{};
    return make_error(ErrorCode::kUnavailable, "cannot send a '{}' to the scheduler", frames.type);
}

bool WorkerLoop::is_over() {
    for (const std::string& line : supervision_.read_lines()) {
        if (line == "stop") is_asked_to_end_ = true;
    }
    return is_asked_to_end_ || supervision_.is_over();
}

Result<> WorkerLoop::look_at_head() {
    if (head_ == nullptr || has_head_ended_) return Ok{};
    ASSIGN_OR_RETURN(has_head_ended_, head_->has_ended());
    if (has_head_ended_) supervision_.say_end("the head has ended");
    return Ok{};
}

Result<> WorkerLoop::handle(const bus::Received& received) {
    if (received.refused) return drop(*received.refused);
    last_turn_ = Clock::now();
    if (Updater::takes(received.frames.type)) {
        RETURN_IF_ERROR(finish_steps(0));
        ASSIGN_OR_RETURN(
            const std::vector<messages::Frames> replies, updater_.handle_order(received.frames)
        );
        return send_all(replies);
    }
    if (received.frames.type != messages::StepPlan::kType) {
        return drop(make_error(
            ErrorCode::kUnknownMessage, "'{}' is no message for a worker", received.frames.type
        ));
    }
    ASSIGN_OR_RETURN(
        const messages::StepPlan plan,
        decode<messages::StepPlan>(received.frames, messages::UnknownFields::kIgnore)
    );
    return start(plan);
}

// Before starting the next plan, waits until only the latest step is in progress.
Result<> WorkerLoop::start(const messages::StepPlan& plan) {
    RETURN_IF_ERROR(finish_steps(engine_.runs_ahead() ? Engine::kStepsMax - 1 : 0));
    if (engine_.num_under_way() == 0) pace_.begin_pass();
    RETURN_IF_ERROR(engine_.start(plan));
    return finish_steps(engine_.runs_ahead() ? Engine::kStepsMax - 1 : 0);
}

Result<> WorkerLoop::finish_steps(std::size_t num) {
    while (engine_.num_under_way() > num) {
        Result<messages::StepResult> result = engine_.finish();
        pace_.end_pass();
        updater_.meter().touch();
        if (!result) return result.error();
        if (engine_.num_under_way() > 0) pace_.begin_pass();
        RETURN_IF_ERROR(send(encode(*result)));
        last_turn_ = Clock::now();
    }
    return Ok{};
}

// Polls as long as the next plan may arrive soon; after that, finish_steps() waits in the engine.
// Either way the engine counts the step's time.
Result<> WorkerLoop::watch_step() {
    if (engine_.is_over() || Clock::now() - last_turn_ > kPlanIsDue) return finish_steps(0);
    std::this_thread::yield();
    return Ok{};
}

Result<> WorkerLoop::drop(const Error& error) {
    ++num_dropped_;
    spdlog::warn("message {} dropped: {}", num_dropped_, error.message);
    return Ok{};
}

Result<> WorkerLoop::send_all(const std::vector<messages::Frames>& all) {
    for (const messages::Frames& frames : all) RETURN_IF_ERROR(send(frames));
    return Ok{};
}

}  // namespace pitstop::tp_worker
