#include "tokenizer_proc/text_call_table.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {
namespace {

void add(TextCallTable& table, JobId job, std::string peer, CallId call) {
    EXPECT_TRUE(table.add(job, {std::move(peer), call}));
}

TEST(TextCallTable, AJobIsOfOneCallUntilItIsRemoved) {
    TextCallTable table;
    add(table, JobId{1}, "a", CallId{7});
    const std::optional<TextCall> call = table.remove(JobId{1});
    ASSERT_TRUE(call);
    EXPECT_EQ(call->peer, "a");
    EXPECT_EQ(call->call, CallId{7});
    EXPECT_FALSE(table.remove(JobId{1}));
    EXPECT_TRUE(table.peers().empty());
}

TEST(TextCallTable, OfCallsWithOneNumberOneIsRemovedHoweverOftenItIsNamed) {
    TextCallTable table;
    for (const JobId job : {JobId{1}, JobId{2}, JobId{3}}) add(table, job, "a", CallId{7});
    add(table, JobId{4}, "b", CallId{7});
    const auto removed = table.remove_some("a", {CallId{7}, CallId{7}, CallId{8}});
    ASSERT_EQ(removed.size(), 1u);
    EXPECT_EQ(removed.front().first, JobId{1});
    EXPECT_EQ(removed.front().second.call, CallId{7});
    EXPECT_TRUE(table.remove(JobId{2}));
    EXPECT_TRUE(table.remove_some("nobody", {CallId{7}}).empty());
}

TEST(TextCallTable, APeerThatLeavesTakesItsCallsAlong) {
    TextCallTable table;
    add(table, JobId{1}, "a", CallId{1});
    add(table, JobId{2}, "b", CallId{1});
    add(table, JobId{3}, "a", CallId{2});
    EXPECT_EQ(table.remove_all("a"), (std::vector{JobId{1}, JobId{3}}));
    EXPECT_EQ(table.peers(), std::vector<std::string>{"b"});
    EXPECT_FALSE(table.remove(JobId{3}));
    const std::vector<TextCall> rest = table.remove_all();
    ASSERT_EQ(rest.size(), 1u);
    EXPECT_EQ(rest.front().peer, "b");
    EXPECT_TRUE(table.peers().empty());
}

TEST(TextCallTable, P7_TheTableIsBounded) {
    TextCallTable table;
    for (std::uint64_t i = 0; i < TextCallTable::kCallsMax; ++i)
        add(table, JobId{i}, "a", CallId{i});
    const Result<> refused = table.add(JobId{TextCallTable::kCallsMax}, {"b", CallId{1}});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(table.peers(), std::vector<std::string>{"a"});
    EXPECT_TRUE(table.remove(JobId{0}));
    EXPECT_TRUE(table.add(JobId{TextCallTable::kCallsMax}, {"b", CallId{1}}));
}

}  // namespace
}  // namespace pitstop::tokenizer
