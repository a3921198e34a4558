#include "tokenizer_proc/returning_adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace pitstop::tokenizer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<messages::LostAdapter> adapters(int num) {
    std::vector<messages::LostAdapter> all;
    for (int i = 0; i < num; ++i)
        all.push_back({.adapter = {.name = std::to_string(i)}, .path = "/adapters/it"});
    return all;
}

// Missing directories are refused at once, within the call that loads them: 4096 refusals must not
// recurse.
TEST(ReturningAdapters, ThousandsThatAreRefusedAtOnceAreNoRecursion) {
    const TimePoint now{seconds(100)};
    ReturningAdapters returning;
    returning.begin(now, {.adapters = adapters(4096)});
    int num = 0;
    int depth = 0;
    int deepest = 0;
    const auto is_busy = [] { return false; };
    const auto load = [&](auto&& self, const messages::UpdateWeights& update) -> void {
        EXPECT_EQ(update.update.adapter, std::to_string(num++));
        deepest = std::max(deepest, ++depth);
        returning.record({.ok = false});
        returning.go_on(now, is_busy, [&](const messages::UpdateWeights& next) {
            self(self, next);
        });
        --depth;
    };
    returning.go_on(now, is_busy, [&](const messages::UpdateWeights& first) { load(load, first); });
    EXPECT_TRUE(returning.is_done());
    EXPECT_EQ(num, 4096);
    EXPECT_EQ(deepest, 1);
}

// A load may have accepted infinities and NaNs. The digest lets no other tensors come back.
TEST(ReturningAdapters, P2_AcceptTheValuesThatWereAcceptedBefore) {
    const TimePoint now{seconds(100)};
    ReturningAdapters returning;
    returning.begin(
        now,
        {.adapters =
             {{.adapter = {.name = "a", .digest = "d1"},
               .path = "/adapters/a",
               .config_digest = "c1"}},
         .limit = seconds(150)}
    );
    std::vector<messages::UpdateSpec> specs;
    returning.go_on(
        now,
        [&] { return !specs.empty(); },
        [&](const messages::UpdateWeights& load) { specs.push_back(load.update); }
    );
    ASSERT_EQ(specs.size(), 1U);
    EXPECT_TRUE(specs.front().allow_nonfinite);
    EXPECT_EQ(specs.front().digest, "d1");
    EXPECT_EQ(specs.front().adapter_config_digest, "c1");
}

// If workers do not answer, the tree starts without the adapters, before the launcher's time limit.
TEST(ReturningAdapters, AllHaveATimeTogether) {
    TimePoint now{seconds(100)};
    ReturningAdapters returning;
    returning.begin(now, {.adapters = adapters(100), .limit = seconds(150)});
    std::vector<std::int64_t> timeouts;
    const auto go_on = [&] {
        bool is_busy = false;
        returning.go_on(
            now,
            [&] { return is_busy; },
            [&](const messages::UpdateWeights& load) {
                timeouts.push_back(load.timeout_ms);
                is_busy = true;
            }
        );
    };
    go_on();
    while (!returning.is_done()) {
        now += milliseconds(timeouts.back());
        returning.record({.ok = false});
        go_on();
    }
    EXPECT_EQ(timeouts, (std::vector<std::int64_t>{60'000, 60'000, 30'000}));
    EXPECT_EQ(now, TimePoint{seconds(250)});
}

}  // namespace
}  // namespace pitstop::tokenizer
