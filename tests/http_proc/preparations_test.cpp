// Tests which preparations an abort waits for.
#include "http_proc/server/preparations.h"

#include <gtest/gtest.h>

#include <optional>

namespace pitstop::http {
namespace {

Task<> wait_over(Preparations& preparations, std::vector<std::string> names, int& num_over) {
    co_await preparations.over(names);
    ++num_over;
}

TEST(Preparations, AnAbortThatMayMeanNonePreparedWaitsForNothing) {
    Preparations preparations;
    int num_over = 0;
    run_detached(wait_over(preparations, {}, num_over));
    EXPECT_EQ(num_over, 1);
    const auto entry = preparations.begin({"cmpl-7", "7"});
    run_detached(wait_over(preparations, {"cmpl-6"}, num_over));
    EXPECT_EQ(num_over, 2);
    const auto nameless = preparations.begin({});
    run_detached(wait_over(preparations, {"x"}, num_over));
    EXPECT_EQ(num_over, 3);
}

TEST(Preparations, AWaitEndsWithTheLastThatMayBeMeant) {
    Preparations preparations;
    std::optional first(preparations.begin({"cmpl-7", "7"}));
    std::optional second(preparations.begin({"batch"}));
    std::optional other(preparations.begin({"other"}));
    int num_over = 0;
    int num_all_over = 0;
    run_detached(wait_over(preparations, {"cmpl-7-12", "batch_3"}, num_over));
    run_detached(wait_over(preparations, {}, num_all_over));
    const auto later = preparations.begin({"batch"});  // begun after the abort
    first.reset();
    EXPECT_EQ(num_over, 0);
    second.reset();
    EXPECT_EQ(num_over, 1);
    EXPECT_EQ(num_all_over, 0);
    other.reset();
    EXPECT_EQ(num_all_over, 1);
}

TEST(Preparations, AnEntryThatWasMovedEndsOnce) {
    Preparations preparations;
    int num_over = 0;
    {
        Preparations::Entry entry = preparations.begin({"a"});
        run_detached(wait_over(preparations, {"a"}, num_over));
        const Preparations::Entry moved = std::move(entry);
        EXPECT_EQ(num_over, 0);
    }
    EXPECT_EQ(num_over, 1);
}

}  // namespace
}  // namespace pitstop::http
