// Steps of several ranks overlap, on the GPU in software. Each rank is a process with its own GPU.
// The emulator runs work only when something waits for it ("late"), so an enqueued step has not
// begun unless the rank waited.
#include "base/isa.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kNumPlans = 6;

int number_of(const char* name) { return std::stoi(std::getenv(name)); }

int wrong(const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", number_of("PITSTOP_TEST_RANK"), what.c_str());
    return 1;
}

// A prompt, and then one token after another, as planned by a scheduler that has not seen them.
std::vector<messages::StepPlan> make_plans(Epoch epoch) {
    constexpr std::int64_t kPromptLen = 3;
    std::vector<messages::StepPlan> plans(kNumPlans);
    for (std::size_t i = 0; i < plans.size(); ++i) {
        messages::StepPlan& plan = plans[i];
        plan.step = static_cast<StepId>(i + 1);
        plan.epoch = epoch;
        plan.pages.values = {PageId{0}};
        const auto output = static_cast<std::int64_t>(i);
        if (i == 0) {
            messages::RequestSetup setup;
            setup.prompt_len = kPromptLen;
            setup.sampling.temperature = 0;
            setup.logprobs.enabled = true;
            setup.history = {TokenId{5}, TokenId{6}, TokenId{7}};
            plan.tokens.values = setup.history;
            plan.setups = {setup};
            plan.rows = {{.num_new = kPromptLen, .num_pages = 1, .output_index = 0}};
        } else {
            plan.tokens.values = {TokenId{0}};
            plan.rows = {
                {.begin = kPromptLen + output - 1,
                 .num_new = 1,
                 .num_pages = 1,
                 .output_index = output}};
            plan.rows[0].takes_sampled = true;
        }
    }
    return plans;
}

std::int64_t num_waits() {
    return emulator::num_calls("cudaEventQuery") + emulator::num_calls("cudaStreamSynchronize") +
           emulator::num_calls("cudaEventSynchronize");
}

// The steps' draws, with this many steps left in progress; or what went wrong.
Result<std::vector<float>> run(Engine& engine, std::size_t num_ahead) {
    std::vector<float> numbers;
    const auto finish = [&]() -> Result<> {
        ASSIGN_OR_RETURN(const messages::StepResult result, engine.finish());
        for (const TokenId id : result.sampled.values)
            numbers.push_back(static_cast<float>(raw(id)));
        numbers.insert(numbers.end(), result.logprobs.values.begin(), result.logprobs.values.end());
        return Ok{};
    };
    for (const messages::StepPlan& plan : make_plans(engine.epoch())) {
        const std::int64_t before = num_waits();
        RETURN_IF_ERROR(engine.start(plan));
        if (num_waits() != before)
            return make_error(ErrorCode::kInternal, "a step's start waits for the GPU");
        if (engine.num_under_way() > num_ahead) RETURN_IF_ERROR(finish());
    }
    while (engine.num_under_way() > 0) RETURN_IF_ERROR(finish());
    return numbers;
}

int run_ahead() {
    const int rank = number_of("PITSTOP_TEST_RANK");
    auto communicator = attach_shm_communicator(
        {.path = std::getenv("PITSTOP_TEST_PLACE"),
         .rank = static_cast<Rank>(rank),
         .size = kRanks,
         .attach_timeout = std::chrono::seconds(60),
         .peer_timeout = std::chrono::seconds(60)}
    );
    if (!communicator) return wrong(communicator.error().message);
    EngineOptions options;
    options.model_dir = model_dir("stories");
    options.device = DeviceKind::kCuda;
    options.gpu = rank;
    options.isa = best_isa();
    options.sums = SumPath::kOwn;
    options.max_total_tokens = 64;
    options.num_slots = 2;
    options.tokens_per_step_max = 64;
    kernels::ThreadPool threads(1);
    const auto engine = Engine::load(options, threads, **communicator);
    if (!engine) return wrong(engine.error().message);
    if (!(*engine)->runs_ahead()) return wrong("steps are one at a time");
    const Result<std::vector<float>> ahead = run(**engine, 1);
    if (!ahead) return wrong(ahead.error().message);
    const Result<std::vector<float>> alone = run(**engine, 0);
    if (!alone) return wrong(alone.error().message);
    if (*ahead != *alone) return wrong("other results than those of one step at a time");
    if (rank == 0 && ahead->size() != 2 * kNumPlans) return wrong("results are missing");
    (*engine)->leave();
    return 0;
}

const bool defined = emulator::define_part("runs ahead", run_ahead);

TEST(GpuRanksAhead, EnqueueAStepWhileTheOneBeforeItRuns) {
    ASSERT_TRUE(defined);
    const test::TempDir dir;
    std::map<std::string, std::string> environment{
        {"PITSTOP_EMULATED_GPUS", std::to_string(kRanks)},
        {"PITSTOP_EMULATED_MACHINE", dir.path("machine")},
        {"PITSTOP_EMULATED_POLICY", "late"},
        {"PITSTOP_TEST_PLACE", dir.path("ranks")}};
    std::vector<int> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        environment["PITSTOP_TEST_RANK"] = std::to_string(rank);
        ranks.push_back(emulator::start_part("runs ahead", environment));
    }
    for (const int rank : ranks) EXPECT_EQ(emulator::wait_part(rank), 0);
}

}  // namespace
}  // namespace pitstop::tp_worker
