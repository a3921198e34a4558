#include "bench/stall_report.h"

#include <gtest/gtest.h>

namespace pitstop::bench {
namespace {

StallReport example() {
    StallReport report;
    report.gap_ms = {.count = 100, .mean = 20, .p50 = 20, .p90 = 21, .p99 = 22, .max = 30};
    report.gap_update_ms = {.count = 50, .mean = 24, .p50 = 22, .p90 = 30, .p99 = 33, .max = 61};
    report.updates = {
        {.seconds = {.stage = {.receive_s = 0.8}, .pause_s = 0.001, .total_s = 1}, .bytes = 8e8}};
    report.idle_updates = {
        {.seconds = {.stage = {.receive_s = 0.5, .verify_s = 0.05}, .total_s = 1}, .bytes = 4e9},
        {.seconds = {.stage = {.receive_s = 1.0, .verify_s = 0.20}, .total_s = 1}, .bytes = 4e9},
        {.seconds = {.stage = {.receive_s = 0.8, .verify_s = 0.08}, .total_s = 1}, .bytes = 4e9},
    };
    report.copy_rate = 1e10;
    report.pause_idle_ms = {.count = 5, .mean = 1, .p50 = 1, .p90 = 1, .p99 = 1, .max = 1};
    report.status_ms = {.count = 9, .mean = 1, .p50 = 1, .p90 = 2, .p99 = 6, .max = 6};
    return report;
}

TEST(StallReport, TargetsFollowFromTheFigures) {
    const std::vector<Target> targets = targets_of(example());
    ASSERT_EQ(targets.size(), 7u);
    EXPECT_DOUBLE_EQ(targets[0].value, 1.5);  // 33 / 22
    EXPECT_TRUE(targets[0].holds());
    EXPECT_DOUBLE_EQ(targets[1].value, 3.05);  // 61 / 20
    EXPECT_FALSE(targets[1].holds());
    EXPECT_DOUBLE_EQ(targets[2].value, 1);  // ms of pause
    EXPECT_TRUE(targets[2].holds());
    EXPECT_DOUBLE_EQ(targets[3].value, 0.5);  // the median, 5e9 / 1e10
    EXPECT_FALSE(targets[3].holds());
    EXPECT_DOUBLE_EQ(targets[4].value, 0.08);
    EXPECT_TRUE(targets[4].holds());
    EXPECT_DOUBLE_EQ(targets[5].value, 0.05);
    EXPECT_DOUBLE_EQ(targets[6].value, 6);
    EXPECT_FALSE(targets[6].holds());
}

TEST(StallReport, JsonAndTableSayTheSame) {
    const Json root = stall_json(example());
    EXPECT_EQ(root["targets"].size(), 7u);
    EXPECT_EQ(root["targets"][3]["at_least"], 0.6);
    EXPECT_EQ(root["targets"][3]["holds"], false);
    const std::string table = stall_table(example());
    EXPECT_NE(table.find("MISSED"), std::string::npos);
    EXPECT_NE(table.find("p99 of status during a long pass"), std::string::npos);
}

TEST(StallReport, AFigureThatWasNotMeasuredIsNoTarget) { EXPECT_TRUE(targets_of({}).empty()); }

}  // namespace
}  // namespace pitstop::bench
