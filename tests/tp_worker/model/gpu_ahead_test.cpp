// Two steps in progress on a GPU: the second step reads the first one's draws on the device, and
// all numbers equal those of one step at a time. Runs on a GPU and, in the emulated preset, on a
// GPU in software.
#include "tests/emulated_gpu/faults.h"
#include "tests/tp_worker/model/gpu_replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kPageSize = GpuReplica::kPageSize;

class GpuAhead : public GpuReplica {};

// Plans of a scheduler that has not seen any token of the steps in flight.
class Planner {
  public:
    explicit Planner(Epoch epoch) : epoch_(epoch) {}

    // Begins a plan.
    void next() {
        plans_.emplace_back();
        plans_.back().step = static_cast<StepId>(plans_.size());
        plans_.back().epoch = epoch_;
    }
    // Plans a request's prompt, with a sample at its end, in pages of its own.
    void set_up(messages::RequestSetup setup, std::int32_t first_page) {
        Held& held = held_[raw(setup.slot)];
        held = {.num_tokens = setup.prompt_len, .first_page = first_page};
        messages::StepPlan& plan = plans_.back();
        for (std::int64_t i = 0; i < setup.prompt_len; ++i)
            plan.tokens.values.push_back(setup.history[static_cast<std::size_t>(i)]);
        add_row(setup.slot, 0, setup.prompt_len, /*takes_sampled=*/false);
        plan.setups.push_back(std::move(setup));
    }
    // Plans the next token of the slot's request. Its input is the request's last drawn token.
    void go_on(SlotId slot) {
        Held& held = held_.at(raw(slot));
        plans_.back().tokens.values.push_back(TokenId{0});
        add_row(slot, held.num_tokens, 1, /*takes_sampled=*/true);
        ++held.num_tokens;
    }
    [[nodiscard]] const std::vector<messages::StepPlan>& plans() const { return plans_; }

  private:
    struct Held {
        std::int64_t num_tokens = 0;
        std::int32_t first_page = 0;
        std::int64_t num_outputs = 0;
    };
    void add_row(SlotId slot, std::int64_t begin, std::int64_t num_new, bool takes_sampled) {
        Held& held = held_.at(raw(slot));
        messages::StepPlan& plan = plans_.back();
        messages::PlanRow row{.slot = slot, .begin = begin, .num_new = num_new};
        row.num_pages = (begin + num_new + kPageSize - 1) / kPageSize;
        row.output_index = held.num_outputs++;
        row.takes_sampled = takes_sampled;
        for (std::int32_t page = 0; page < row.num_pages; ++page)
            plan.pages.values.push_back(static_cast<PageId>(held.first_page + page));
        plan.rows.push_back(row);
    }

    Epoch epoch_;
    std::vector<messages::StepPlan> plans_{};
    std::map<std::int32_t, Held> held_{};
};

messages::RequestSetup setup_of(std::int32_t slot, std::int64_t prompt_len) {
    messages::RequestSetup setup;
    setup.slot = static_cast<SlotId>(slot);
    setup.prompt_len = prompt_len;
    setup.sampling.temperature = 0;
    setup.logprobs.enabled = true;
    for (std::int64_t i = 0; i < prompt_len; ++i)
        setup.history.push_back(static_cast<TokenId>(5 + 11 * slot + i));
    return setup;
}

// Requests whose draws depend on earlier draws only through the model. No slot equals the request's
// place in the batch, or is next to it.
std::vector<messages::RequestSetup> free_requests() {
    std::vector<messages::RequestSetup> setups;
    setups.push_back(setup_of(5, 3));
    setups.push_back(setup_of(0, 1));
    setups.back().sampling.temperature = 1.5;
    setups.back().sampling.seed = 7;
    setups.push_back(setup_of(3, 6));
    setups.back().sampling.temperature = 0.9;
    setups.back().sampling.top_p = 0.8;
    setups.back().logprobs.mode = messages::LogprobsMode::kTruncated;
    setups.back().logprobs.top = 3;
    setups.push_back(setup_of(6, 2));
    setups.back().sampling.temperature = 2.0;
    setups.back().sampling.top_k = 20;
    setups.back().sampling.min_p = 0.01;
    setups.back().sampling.logit_bias = {{30, 4.0}};
    setups.back().logprobs.mode = messages::LogprobsMode::kScaled;
    setups.back().logprobs.ids = {TokenId{30}, TokenId{31}};
    return setups;
}

// Requests whose draws also depend on earlier draws directly: by counts of tokens and by bad
// tokens.
std::vector<messages::RequestSetup> following_requests() {
    std::vector<messages::RequestSetup> setups = free_requests();
    setups[1].sampling.frequency_penalty = 1.5;
    setups[1].sampling.repetition_penalty = 1.2;
    setups[3].sampling.temperature = 0;
    setups[3].sampling.top_k.reset();
    setups[3].sampling.min_p = 0;
    for (const std::int32_t id : {300, 301, 302}) {
        setups[3].sampling.allowed_token_ids.push_back(TokenId{id});
        setups[3].sampling.bad_tokens.push_back({TokenId{id}, TokenId{id}});
    }
    return setups;
}

// All requests decode; then one ends, and another request gets its slot and its pages. The order of
// rows changes with every plan.
std::vector<messages::StepPlan> plans_of(
    const std::vector<messages::RequestSetup>& setups, Epoch epoch
) {
    constexpr std::size_t kNumPlans = 11;
    constexpr std::size_t kTakenOver = 6;  // the plan in which the other request begins
    const auto first_page = [](SlotId slot) { return 10 * (1 + raw(slot)); };
    messages::RequestSetup other = setup_of(raw(setups[1].slot), 5);
    // Negative penalties make earlier tokens likely again and change every logprob.
    other.sampling.presence_penalty = -2.0;
    other.sampling.frequency_penalty = -2.0;
    other.logprobs.mode = messages::LogprobsMode::kScaled;
    Planner planner(epoch);
    for (std::size_t plan = 0; plan < kNumPlans; ++plan) {
        planner.next();
        for (std::size_t row = 0; row < setups.size(); ++row) {
            const messages::RequestSetup& setup = setups[(row + plan) % setups.size()];
            const bool is_other = plan == kTakenOver && setup.slot == other.slot;
            if (plan == 0 || is_other) {
                planner.set_up(is_other ? other : setup, first_page(setup.slot));
            } else {
                planner.go_on(setup.slot);
            }
        }
    }
    return planner.plans();
}

std::vector<messages::StepResult> run(
    TestReplica& replica, const std::vector<messages::RequestSetup>& setups, std::size_t num_ahead
) {
    Engine& engine = replica.root();
    std::vector<messages::StepResult> results;
    const auto finish = [&] {
        Result<messages::StepResult> result = engine.finish();
        ASSERT_TRUE(result.has_value()) << result.error().message;
        results.push_back(*std::move(result));
    };
    for (const messages::StepPlan& plan : plans_of(setups, engine.epoch())) {
        EXPECT_EQ(messages::invalid(plan).value_or(""), "");
        const Result<> started = engine.start(plan);
        EXPECT_TRUE(started.has_value()) << started.error().message;
        while (engine.wants_graph()) EXPECT_TRUE(engine.make_graph().has_value());
        while (engine.num_under_way() > num_ahead) finish();
    }
    while (engine.num_under_way() > 0) finish();
    return results;
}

void expect_same(
    const std::vector<messages::StepResult>& a, const std::vector<messages::StepResult>& b
) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "step " << i);
        EXPECT_EQ(a[i].step, b[i].step);
        EXPECT_EQ(a[i].sampled.values, b[i].sampled.values);
        EXPECT_EQ(a[i].logprobs.values, b[i].logprobs.values);
        EXPECT_EQ(a[i].ranks.values, b[i].ranks.values);
        EXPECT_EQ(a[i].top_ids.values, b[i].top_ids.values);
        EXPECT_EQ(a[i].top_logprobs.values, b[i].top_logprobs.values);
        EXPECT_EQ(a[i].ids_logprobs.values, b[i].ids_logprobs.values);
        EXPECT_TRUE(a[i].undrawn.empty() && b[i].undrawn.empty());
    }
}

TEST_F(GpuAhead, GivesTheBitsOfOneStepAtATime) {
    for (const bool has_graphs : {true, false}) {
        SCOPED_TRACE(testing::Message() << "graphs " << has_graphs);
        const auto replica = open(has_graphs, Determinism::kBatchInvariant);
        expect_same(run(*replica, free_requests(), 1), run(*replica, free_requests(), 0));
        expect_same(run(*replica, following_requests(), 1), run(*replica, following_requests(), 0));
    }
    const auto fast = open(/*has_graphs=*/true);
    expect_same(run(*fast, following_requests(), 1), run(*fast, following_requests(), 0));
}

// The values that the device passes from step to step are those that the host would pass.
TEST_F(GpuAhead, TakesTheTokensThatTheHostSees) {
    const auto replica = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    std::vector<messages::RequestSetup> setups = free_requests();
    setups[2] = setup_of(3, 6);
    const std::vector<messages::StepPlan> plans = plans_of(setups, replica->root().epoch());
    const std::vector<messages::StepResult> ahead = run(*replica, setups, 1);
    ASSERT_EQ(ahead.size(), plans.size());
    for (const messages::RequestSetup& greedy : {setups[0], setups[2]}) {
        std::vector<TokenId> tokens = greedy.history;
        for (std::size_t i = 0; i < plans.size(); ++i) {
            SCOPED_TRACE(testing::Message() << "slot " << raw(greedy.slot) << " step " << i);
            const auto row =
                std::ranges::find(plans[i].rows, greedy.slot, &messages::PlanRow::slot);
            const auto at = static_cast<std::size_t>(row - plans[i].rows.begin());
            const TokenId token = ahead[i].sampled.values.at(at);
            EXPECT_EQ(generate(replica.get(), tokens, 1).front(), token);
            tokens.push_back(token);
        }
    }
}

// An engine may be destroyed while steps are in progress.
TEST_F(GpuAhead, AnEngineGoesWithStepsUnderWay) {
    const auto replica = open(/*has_graphs=*/true);
    const std::vector<messages::StepPlan> plans =
        plans_of(following_requests(), replica->root().epoch());
    ASSERT_TRUE(replica->root().start(plans[0]).has_value());
    ASSERT_TRUE(replica->root().start(plans[1]).has_value());
    EXPECT_EQ(replica->root().num_under_way(), 2u);
}

#if defined(PITSTOP_EMULATED)
// A step is enqueued while the step before it runs: nothing queries the device for its end.
TEST_F(GpuAhead, StartingAStepWaitsForNothing) {
    const auto replica = open(/*has_graphs=*/true);
    Engine& engine = replica->root();
    const std::vector<messages::StepPlan> plans = plans_of(free_requests(), engine.epoch());
    const auto num_waits = [] {
        return emulator::num_calls("cudaEventQuery") +
               emulator::num_calls("cudaStreamSynchronize") +
               emulator::num_calls("cudaEventSynchronize");
    };
    for (std::size_t i = 0; i < plans.size(); ++i) {
        const std::int64_t before = num_waits();
        ASSERT_TRUE(engine.start(plans[i]).has_value());
        while (engine.wants_graph()) ASSERT_TRUE(engine.make_graph().has_value());
        // The request that gets a used slot counts its own draws, which are unknown until the step
        // that makes them is done.
        if (i < 6) {
            EXPECT_EQ(num_waits(), before) << "step " << i;
        }
        if (i == 0) continue;
        ASSERT_TRUE(engine.finish().has_value());
        EXPECT_GT(num_waits(), before) << "step " << i;
    }
    ASSERT_TRUE(engine.finish().has_value());
}
#endif

}  // namespace
}  // namespace pitstop::tp_worker
