// A step that never ends, on the GPU in software: its time limit applies while the rank waits for
// it and while the rank only queries it. Each case ends its own process.
#include "base/isa.h"
#include "kernels/runtime/cuda_device.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace pitstop::tp_worker {
namespace {

constexpr int kWrong = 1;
constexpr int kUnreached = 11;  // every step ended
constexpr int kEnded = 12;      // the handler of CUDA's failures was called for a step
constexpr int kNotTold = 13;    // the time limit had no effect
constexpr auto kStepTimeout = std::chrono::seconds(2);
constexpr auto kDeadline = std::chrono::seconds(60);

messages::StepPlan plan_of(int step, Epoch epoch) {
    messages::StepPlan plan;
    plan.step = static_cast<StepId>(step);
    plan.epoch = epoch;
    messages::RequestSetup setup;
    setup.prompt_len = 3;
    setup.sampling.temperature = 0;
    plan.setups = {setup};
    plan.rows = {{.num_new = 3, .num_pages = 1, .output_index = 0}};
    plan.tokens.values = {TokenId{5}, TokenId{6}, TokenId{7}};
    plan.pages.values = {PageId{0}};
    return plan;
}

// Queries each step without waiting for it, as the loop does when it has no plan.
int look_after_steps() {
    kernels::set_cuda_failure_handler([](const std::string& line) {
        const bool is_told = line.find("a step did not end on the GPU") != std::string::npos;
        std::_Exit(is_told ? kEnded : kWrong);
    });
    ReplicaOptions options;
    options.engine.model_dir = model_dir("stories");
    options.engine.device = DeviceKind::kCuda;
    options.engine.isa = best_isa();
    options.engine.max_total_tokens = 64;
    options.engine.num_slots = 2;
    options.engine.tokens_per_step_max = 8;
    options.engine.step_timeout = kStepTimeout;
    const auto replica = TestReplica::make(options);
    if (!replica) return kWrong;
    Engine& engine = (*replica)->root();
    constexpr int kStepsMax = 100;
    for (int step = 1; step <= kStepsMax; ++step) {
        const TimePoint begun = Clock::now();
        if (!engine.start(plan_of(step, engine.epoch()))) return kWrong;
        while (!engine.is_over()) {
            // Exits here, because the replica's destructor would wait for its steps.
            if (Clock::now() - begun > kDeadline) std::_Exit(kNotTold);
            std::this_thread::yield();
        }
        if (!engine.finish()) return kWrong;
    }
    return kUnreached;
}

[[maybe_unused]] const bool kDefined = emulator::define_part("looks after steps", look_after_steps);

TEST(GpuWatch, P5_AStepsTimeRunsOutThoughNobodyWaitsForIt) {
    EXPECT_EQ(
        emulator::run_part("looks after steps", {{"PITSTOP_EMULATED_FAULTS", "kernel:400=hang"}}),
        kEnded
    );
}

}  // namespace
}  // namespace pitstop::tp_worker
