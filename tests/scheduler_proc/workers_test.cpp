#include "scheduler_proc/workers.h"

#include "tests/scheduler_proc/fake_workers.h"

#include <gtest/gtest.h>

#include <limits>

namespace pitstop::scheduler {
namespace {

messages::WorkerHello hello_of(int rank, const FakeModel& model) {
    return std::get<messages::WorkerHello>(
        FakeWorkers(model).hellos().at(static_cast<std::size_t>(rank))
    );
}

TEST(Workers, AreCompleteWhenEveryRankIsThere) {
    const FakeModel model{.tp = 2};
    Workers workers(2);
    EXPECT_EQ(workers.who_is_missing(), "rank 0, rank 1");
    ASSERT_TRUE(workers.handle_hello(hello_of(1, model), 4));
    EXPECT_FALSE(workers.is_complete());
    EXPECT_EQ(workers.who_is_missing(), "rank 0");
    ASSERT_TRUE(workers.handle_hello(hello_of(0, model), 4));
    EXPECT_TRUE(workers.is_complete());
    ASSERT_TRUE(workers.digest());
    EXPECT_EQ(workers.digest()->size(), 32u);
    EXPECT_EQ(workers.status().size(), 2u);
}

TEST(Workers, TheRankWithTheFewestPagesSetsThePool) {
    const FakeModel model{.tp = 2};
    Workers workers(2);
    messages::WorkerHello small = hello_of(1, model);
    small.num_pages = 10;
    small.num_slots = 3;
    ASSERT_TRUE(workers.handle_hello(hello_of(0, model), 4));
    ASSERT_TRUE(workers.handle_hello(small, 4));
    EXPECT_EQ(workers.num_pages(), 10);
    EXPECT_EQ(workers.num_slots(), 3);
    EXPECT_EQ(workers.limits().pool_tokens, 40);
}

TEST(Workers, TheRankWithTheFewestCheckpointsSetsTheirNumber) {
    Workers workers(2);
    const FakeModel model{.tp = 2, .state_bytes = 64, .num_checkpoints = 9};
    messages::WorkerHello small = hello_of(1, model);
    small.num_checkpoints = 5;
    ASSERT_TRUE(workers.handle_hello(hello_of(0, model), 4));
    ASSERT_TRUE(workers.handle_hello(small, 4));
    EXPECT_TRUE(workers.have_state());
    EXPECT_EQ(workers.num_checkpoints(), 5);
    EXPECT_EQ(workers.status().at(0).state_bytes, 64);
    EXPECT_EQ(workers.status().at(1).num_checkpoints, 5);
}

TEST(Workers, RanksThatDivideExpertsDifferentlyAreRefused) {
    Workers workers(2);
    messages::WorkerHello divided = hello_of(1, {.tp = 2});
    divided.ep = 2;
    ASSERT_TRUE(workers.handle_hello(hello_of(0, {.tp = 2}), 4));
    const Result<> taken = workers.handle_hello(divided, 4);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().message, "ranks disagree: rank 0 has ep 1, rank 1 has 2");
    EXPECT_EQ(workers.status().at(0).ep, 1);
}

TEST(Workers, ThatClaimMoreThanCanBeKeptTrackOfAreCutShort) {
    Workers workers(1);
    messages::WorkerHello huge = hello_of(0, {});
    huge.num_pages = std::numeric_limits<std::int64_t>::max();
    huge.num_slots = std::numeric_limits<std::int64_t>::max();
    ASSERT_TRUE(workers.handle_hello(huge, 4));
    EXPECT_EQ(workers.num_pages(), kPagesMax);
    EXPECT_EQ(workers.num_slots(), 4096);
}

TEST(Workers, ThatDisagreeAreRefusedWithTheField) {
    const FakeModel model{.tp = 2};
    const auto refusal_of = [&](auto change) {
        Workers workers(2);
        EXPECT_TRUE(workers.handle_hello(hello_of(0, model), 4));
        messages::WorkerHello other = hello_of(1, model);
        change(other);
        const auto added = workers.handle_hello(other, 4);
        return added ? std::string("accepted") : added.error().message;
    };
    EXPECT_EQ(refusal_of([](messages::WorkerHello&) {}), "accepted");
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.vocab_size = 7; }), "vocab_size"));
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.context_len = 7; }), "context_len")
    );
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.model_type = "x"; }), "model_type")
    );
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.page_size = 8; }), "--page-size"));
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.tp = 3; }), "--tp"));
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.eos_ids.clear(); }), "eos_ids"));
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.compute = "fp32"; }), "compute"));
    EXPECT_TRUE(has(refusal_of([](messages::WorkerHello& h) { h.state_bytes = 8; }), "state_bytes")
    );
}

}  // namespace
}  // namespace pitstop::scheduler
