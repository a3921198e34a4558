// The planner alone, over requests and a pool: a step's rows, and the requests that wait.
#include "scheduler_proc/step_planner.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace pitstop::scheduler {
namespace {

using Scope = StepPlanner::Scope;

const ModelLimits kLimits{.context_len = 64, .vocab_size = 1000, .pool_tokens = 64};

class StepPlannerTest : public testing::Test {
  protected:
    // A request whose prompt is `prompt_len` tokens from `first` on.
    Request& add(std::uint64_t key, int prompt_len, int first, std::int64_t priority = 0) {
        messages::TokenizedRequest arrived{.key = RequestKey{key}};
        for (int i = 0; i < prompt_len; ++i)
            arrived.prompt.values.push_back(static_cast<TokenId>(first + i));
        arrived.sampling.max_new_tokens = 8;
        arrived.priority = priority;
        requests.add(std::move(arrived), kLimits, TimePoint{});
        return *requests.find(RequestKey{key});
    }

    // Plans a step; returns the number of tokens of each request: "1:4 2:1".
    std::string plan(Scope scope = Scope::kEverything) {
        StepPlanner planner({
            .requests = requests,
            .pool = pool,
            .tallies = tallies,
            .adapters = adapters,
            .step = step,
            .version = version,
            .tokens_max = tokens_max,
        });
        const auto planned = planner.plan(scope);
        if (!planned) return "";
        step = next(step);
        std::string rows;
        for (std::size_t i = 0; i < planned->plan.rows.size(); ++i) {
            const StepRow& row = planned->step.rows[i];
            if (!rows.empty()) rows += ' ';
            rows += fmt::format("{}:{}", raw(row.key), planned->plan.rows[i].num_new);
            num_sampled[row.key] += row.samples ? 1 : 0;
        }
        return rows;
    }

    // Ends all steps, and lets each sampled token arrive.
    void finish_steps() {
        pool.end_step(StepId{raw(step) - 1});
        for (Request* request : requests.all(OpenRequests::Which::kAll)) {
            for (std::int64_t& num = num_sampled[request->key]; num > 0; --num) {
                request->progress.learn_token();
                request->tokens.push_back(TokenId{7});
            }
        }
        pool.release_ended();
    }

    void TearDown() override {
        std::vector<const Lease*> held;
        for (const Request* request : requests.running()) held.push_back(&request->lease);
        EXPECT_EQ(pool.audit(held).value_or(""), "");
        EXPECT_EQ(requests.audit(num_sampled).value_or(""), "");
    }

    OpenRequests requests{Fairness::kFcfs};
    KvPool pool{{.num_pages = 10, .page_size = 2, .num_slots = 4}};
    Tallies tallies{};
    AdapterPlaces adapters{/*bytes_max=*/0, /*tp=*/1};
    Version version{};
    std::int64_t tokens_max = 8;
    StepId step{1};
    std::map<RequestKey, std::int64_t> num_sampled{};
};

TEST_F(StepPlannerTest, NothingIsPlannedWhereNothingMayOrCanMove) {
    EXPECT_EQ(plan(), "");
    add(1, 3, 10);
    EXPECT_EQ(plan(Scope::kNothing), "");
    EXPECT_EQ(plan(Scope::kStarted), "") << "it never ran";
    EXPECT_EQ(plan(), "1:3");
    EXPECT_EQ(plan(Scope::kStarted), "1:1") << "its token is being sampled, and it goes on";
}

TEST_F(StepPlannerTest, DecodesComeFirstAndPrefillsHaveWhatTheyLeave) {
    pool = KvPool({.num_pages = 20, .page_size = 2, .num_slots = 4});
    add(1, 2, 10);
    add(2, 2, 20);
    EXPECT_EQ(plan(), "1:2 2:2");
    add(3, 9, 30);
    EXPECT_EQ(plan(), "1:1 2:1 3:6");
    add(4, 2, 40);
    EXPECT_EQ(plan(), "1:1 2:1 3:3 4:2");
}

TEST_F(StepPlannerTest, PrefillsShareTheTokensOfAStepInTheirOrder) {
    add(1, 6, 10);
    add(2, 4, 20);
    EXPECT_EQ(plan(), "1:6 2:2");
    EXPECT_EQ(plan(), "1:1 2:2");
}

TEST_F(StepPlannerTest, ManyDecodesLeavePrefillsAFourth) {
    pool = KvPool({.num_pages = 20, .page_size = 2, .num_slots = 8});
    for (std::uint64_t key = 1; key <= 7; ++key) add(key, 1, static_cast<int>(10 * key));
    EXPECT_EQ(plan(), "1:1 2:1 3:1 4:1 5:1 6:1 7:1");
    add(8, 5, 100);
    EXPECT_EQ(plan(), "1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:2");
    tokens_max = 3;
    EXPECT_EQ(plan(), "1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1") << "one at least";
}

TEST_F(StepPlannerTest, ARequestThatSharesAPrefixWithAPrefillWaitsForTheNextStep) {
    add(1, 5, 10);
    Request& second = add(2, 5, 10);
    add(3, 2, 50);
    EXPECT_EQ(plan(), "1:5 3:2") << "the one behind it overtakes";
    EXPECT_EQ(requests.first_waiting(), &second) << "and it keeps its place";
    EXPECT_EQ(plan(), "1:1 2:1 3:1");
    EXPECT_EQ(second.cached_tokens, 4);
    EXPECT_EQ(tallies.num_cached_tokens, 4);
    EXPECT_EQ(tallies.num_prompt_tokens, 12);
}

TEST_F(StepPlannerTest, NobodyOvertakesTheFirstToThePagesItLacks) {
    tokens_max = 20;
    add(1, 11, 10);  // six pages, and one to decode into
    EXPECT_EQ(plan(), "1:11");
    Request& second = add(2, 7, 30);
    add(3, 1, 50);
    EXPECT_EQ(plan(), "1:1");
    EXPECT_EQ(requests.first_waiting(), &second);
}

TEST_F(StepPlannerTest, WhereASlotIsLackingNobodyStarts) {
    for (std::uint64_t key = 1; key <= 5; ++key) add(key, 1, static_cast<int>(10 * key));
    EXPECT_EQ(plan(), "1:1 2:1 3:1 4:1");
    EXPECT_EQ(requests.num_waiting(), 1);
}

TEST_F(StepPlannerTest, P4_TheYoungestGivesWayAndItsRowIsNoPartOfThePlan) {
    tokens_max = 20;
    add(1, 8, 10);
    Request& second = add(2, 8, 30);
    EXPECT_EQ(plan(), "1:8 2:8");
    finish_steps();
    EXPECT_EQ(plan(), "1:1 2:1") << "ten pages of ten";
    finish_steps();
    EXPECT_EQ(plan(), "1:1 2:1");
    finish_steps();
    EXPECT_EQ(plan(), "1:1");
    EXPECT_FALSE(second.is_running());
    EXPECT_EQ(second.num_retractions, 1);
    EXPECT_EQ(second.tokens.size(), 11u);
    EXPECT_EQ(tallies.num_retractions, 1);
    EXPECT_EQ(requests.first_waiting(), &second);
}

// An older request's prefill takes the page that the youngest request's next decode needs.
TEST_F(StepPlannerTest, P4_ARowThatWasDraftedForTheYoungestIsTakenBack) {
    pool = KvPool({.num_pages = 9, .page_size = 2, .num_slots = 4});
    tokens_max = 3;
    Request& youngest = add(1, 1, 10);
    EXPECT_EQ(plan(), "1:1");
    finish_steps();
    add(2, 12, 30, /*priority=*/5);
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(plan(), "1:1 2:2");
        finish_steps();
    }
    EXPECT_EQ(plan(), "2:2");
    EXPECT_EQ(youngest.num_retractions, 1);
    EXPECT_EQ(requests.first_waiting(), &youngest);
}

TEST_F(StepPlannerTest, ARetractedRequestWaitsForTheTokensThatAreStillSampled) {
    Request& first = add(1, 3, 10);
    EXPECT_EQ(plan(), "1:3");
    pool.give_back(requests.retract(first));
    add(2, 1, 20);
    EXPECT_EQ(plan(), "") << "nor does anybody overtake it";
    finish_steps();
    EXPECT_EQ(plan(), "1:2 2:1") << "its first page is in the cache";
    EXPECT_EQ(tallies.num_recomputed_tokens, 1);
}

TEST_F(StepPlannerTest, P9_ARowCarriesTheEpochsOfAllTheKvItAttendsTo) {
    Request& request = add(1, 3, 10);
    EXPECT_EQ(plan(), "1:3");
    version.epoch = Epoch{2};
    EXPECT_EQ(plan(), "1:1");
    EXPECT_EQ(request.lease.kv, (EpochRange{Epoch{1}, Epoch{2}}));
    EXPECT_EQ(request.lease.last_step, StepId{2});
}

}  // namespace
}  // namespace pitstop::scheduler
