// Which client's request is admitted next: clients in turn, or by arrival.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace pitstop::scheduler {
namespace {

std::vector<TokenId> prompt_of(int i) {
    return {static_cast<TokenId>(2 + i % 30), static_cast<TokenId>(2 + i / 30 % 30), TokenId{7}};
}

// One request runs at a time, so the order in which they end is the order of admission.
std::vector<RequestKey> order_of(Rig& rig, const std::vector<RequestKey>& keys) {
    std::vector<RequestKey> order;
    rig.turn();
    for (int i = 0; i < 20'000 && order.size() < keys.size(); ++i) {
        rig.step();
        for (const RequestKey key : keys) {
            if (rig.of(key).finish && std::ranges::find(order, key) == order.end())
                order.push_back(key);
        }
    }
    return order;
}

// The number of `others` that come before `key`.
std::ptrdiff_t num_before(
    const std::vector<RequestKey>& order, RequestKey key, const std::vector<RequestKey>& others
) {
    const auto place = std::ranges::find(order, key);
    return std::count_if(order.begin(), place, [&](RequestKey before) {
        return std::ranges::find(others, before) != others.end();
    });
}

struct Flood {
    std::vector<RequestKey> flood{};
    std::vector<RequestKey> few{};
    std::vector<RequestKey> order{};
};
Flood run_flood(Fairness fairness, bool with_names) {
    Rig rig({}, {.running_max = 1, .fairness = fairness});
    Flood all;
    for (int i = 0; i < 100; ++i) {
        std::vector<std::string> client{"flood"};
        if (with_names) client.push_back("name-" + std::to_string(i));
        all.flood.push_back(
            rig.send({.prompt = prompt_of(i), .max_new_tokens = 1, .client = std::move(client)})
        );
    }
    for (int i = 0; i < 3; ++i) {
        all.few.push_back(
            rig.send({.prompt = prompt_of(200 + i), .max_new_tokens = 1, .client = {"few"}})
        );
    }
    std::vector<RequestKey> keys = all.flood;
    keys.insert(keys.end(), all.few.begin(), all.few.end());
    all.order = order_of(rig, keys);
    EXPECT_EQ(all.order.size(), keys.size());
    return all;
}

TEST(Fairness, AFloodOfOneClientDelaysAnotherByOneRequestEach) {
    for (const bool with_names : {false, true}) {
        SCOPED_TRACE(with_names ? "under names of its own" : "under one name");
        const Flood all = run_flood(Fairness::kFair, with_names);
        for (std::size_t i = 0; i < all.few.size(); ++i) {
            EXPECT_LE(
                num_before(all.order, all.few[i], all.flood), static_cast<std::ptrdiff_t>(i) + 1
            );
        }
    }
}

TEST(Fairness, FirstComeFirstServedIsThereForTheAsking) {
    const Flood all = run_flood(Fairness::kFcfs, /*with_names=*/false);
    std::vector<RequestKey> keys = all.flood;
    keys.insert(keys.end(), all.few.begin(), all.few.end());
    EXPECT_EQ(all.order, keys);
}

TEST(Fairness, PriorityComesBeforeTurns) {
    Rig rig({}, {.running_max = 1});
    const auto ask = [](int i, std::int64_t priority, const char* client) {
        return Ask{
            .prompt = prompt_of(i), .max_new_tokens = 1, .priority = priority, .client = {client}};
    };
    const RequestKey a = rig.send(ask(1, 0, "a"));
    const RequestKey b = rig.send(ask(2, 0, "b"));
    const RequestKey a1 = rig.send(ask(3, 5, "a"));
    const RequestKey a2 = rig.send(ask(4, 5, "a"));
    EXPECT_EQ(order_of(rig, {a, b, a1, a2}), (std::vector{a1, a2, a, b}));
}

// A client that fills the queue keeps no other client out: its own newest request is refused.
TEST(Fairness, AFullQueuePushesOutTheNewestOfTheClientWithTheMost) {
    Rig rig({}, {.running_max = 1, .queue_len_max = 4});
    std::vector<RequestKey> flood;
    for (int i = 0; i < 6; ++i) {
        flood.push_back(rig.send({.prompt = prompt_of(i), .max_new_tokens = 1, .client = {"flood"}})
        );
    }
    const RequestKey few =
        rig.send({.prompt = prompt_of(50), .max_new_tokens = 1, .client = {"few"}});
    rig.turn();
    for (const std::size_t i : {3U, 4U, 5U}) {
        ASSERT_TRUE(rig.of(flood[i]).finish) << i;
        EXPECT_EQ(rig.of(flood[i]).finish->verdict.code, ErrorCode::kResourceExhausted);
    }
    rig.run();
    EXPECT_EQ(rig.of(few).tokens.size(), 1u);
    for (const std::size_t i : {0U, 1U, 2U}) EXPECT_EQ(rig.of(flood[i]).tokens.size(), 1u);
}

}  // namespace
}  // namespace pitstop::scheduler
