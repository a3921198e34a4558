#include "bench/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <vector>

namespace pitstop::bench {
namespace {

LengthDistribution lengths(std::string_view text) {
    Result<LengthDistribution> parsed = LengthDistribution::parse(text);
    EXPECT_TRUE(parsed.has_value()) << text;
    return *std::move(parsed);
}

std::vector<std::int64_t> draws(std::string_view text, std::size_t count) {
    const LengthDistribution distribution = lengths(text);
    Random random(1);
    std::vector<std::int64_t> drawn;
    for (std::size_t i = 0; i < count; ++i) drawn.push_back(distribution.draw(random, i));
    std::sort(drawn.begin(), drawn.end());
    return drawn;
}

TEST(LengthDistribution, FixedIsAlwaysTheSame) {
    for (const char* text : {"128", "fixed:128", "uniform:128:128", "lognormal:128:0"}) {
        const auto drawn = draws(text, 100);
        EXPECT_EQ(drawn.front(), 128) << text;
        EXPECT_EQ(drawn.back(), 128) << text;
    }
}

TEST(LengthDistribution, UniformReachesBothEnds) {
    const auto drawn = draws("uniform:3:7", 10'000);
    for (std::int64_t length = 3; length <= 7; ++length) {
        const auto count = std::count(drawn.begin(), drawn.end(), length);
        EXPECT_NEAR(static_cast<double>(count), 2000, 5 * 40) << length;  // 5 standard errors
    }
    EXPECT_EQ(drawn.front(), 3);
    EXPECT_EQ(drawn.back(), 7);
}

TEST(LengthDistribution, LognormalHasItsMedianAndSpread) {
    const auto drawn = draws("lognormal:1000:0.5", 10'000);
    EXPECT_NEAR(static_cast<double>(drawn[5000]), 1000, 1000 * 5 * 0.5 * 1.2533 / 100);
    // One sigma up is the 84.13th percentile of a normal distribution.
    EXPECT_NEAR(static_cast<double>(drawn[8413]), 1000 * std::exp(0.5), 1649 * 0.05);
}

TEST(LengthDistribution, AFileIsTakenInOrderAndAgain) {
    const std::string path =
        std::filesystem::temp_directory_path() / ("lengths-" + std::to_string(::getpid()));
    std::ofstream(path) << "5\n9\n\n2\n";
    const LengthDistribution distribution = lengths("file:" + path);
    std::filesystem::remove(path);
    Random random(0);
    std::vector<std::int64_t> drawn;
    for (std::size_t i = 0; i < 5; ++i) drawn.push_back(distribution.draw(random, i));
    EXPECT_EQ(drawn, (std::vector<std::int64_t>{5, 9, 2, 5, 9}));
}

TEST(LengthDistribution, RefusesWhatIsNone) {
    for (const char* text :
         {"",
          "0",
          "-3",
          "x",
          "fixed:",
          "uniform:9:3",
          "uniform:1",
          "lognormal:10:-1",
          "lognormal:10:nan",
          "lognormal:0:1",
          "file:/nonexistent/lengths",
          "5:6"}) {
        EXPECT_FALSE(LengthDistribution::parse(text).has_value()) << text;
    }
}

WorkloadArgs args_of(std::int64_t num_requests) {
    return {
        .num_requests = num_requests,
        .prompt_len = lengths("uniform:4:8"),
        .output_len = lengths("16"),
        .vocab = 100,
        .context_len = 1000};
}

TEST(Workload, PoissonArrivalsHaveTheirRate) {
    WorkloadArgs args = args_of(10'000);
    args.rate = 50.0;
    const Result<Workload> workload = make_workload(args);
    ASSERT_TRUE(workload.has_value());
    const auto& requests = workload->requests;
    const double last = std::chrono::duration<double>(requests.back().arrival).count();
    EXPECT_NEAR(last, 10'000 / 50.0, 5 * 200 / std::sqrt(10'000));  // 5 standard errors
    EXPECT_EQ(requests.front().arrival, Duration{});
    // Gaps are exponential: a share of 1 - 1/e of them is shorter than the mean.
    int shorter = 0;
    for (std::size_t i = 1; i < requests.size(); ++i) {
        const Duration gap = requests[i].arrival - requests[i - 1].arrival;
        EXPECT_GE(gap, Duration{});
        if (std::chrono::duration<double>(gap).count() < 1 / 50.0) ++shorter;
    }
    EXPECT_NEAR(shorter / 10'000.0, 1 - std::exp(-1), 0.025);
}

TEST(Workload, PrefixesAreSharedWithinAGroup) {
    WorkloadArgs args = args_of(6);
    args.shared_prefix_len = 10;
    args.prefix_groups = 2;
    const Result<Workload> workload = make_workload(args);
    ASSERT_TRUE(workload.has_value());
    const auto prefix = [&](std::size_t i) {
        const auto& prompt = workload->requests[i].prompt;
        return std::vector<TokenId>(prompt.begin(), prompt.begin() + 10);
    };
    EXPECT_EQ(prefix(0), prefix(2));
    EXPECT_EQ(prefix(1), prefix(5));
    EXPECT_NE(prefix(0), prefix(1));
    EXPECT_NE(workload->requests[0].prompt, workload->requests[2].prompt);
    for (const auto& request : workload->requests) EXPECT_GE(request.prompt.size(), 14u);
}

TEST(Workload, LengthsAreCutToTheContext) {
    WorkloadArgs args = args_of(4);
    args.prompt_len = lengths("90");
    args.output_len = lengths("40");
    args.context_len = 100;
    const Result<Workload> workload = make_workload(args);
    ASSERT_TRUE(workload.has_value());
    EXPECT_EQ(workload->num_cut, 4);
    EXPECT_EQ(workload->requests[0].prompt.size(), 90u);
    EXPECT_EQ(workload->requests[0].output_len, 10);
}

TEST(Workload, SaysWhatIsWrong) {
    EXPECT_FALSE(make_workload(args_of(0)).has_value());
    EXPECT_FALSE(make_workload(args_of(kRequestsMax + 1)).has_value());
    WorkloadArgs long_prefix = args_of(1);
    long_prefix.shared_prefix_len = 999;
    EXPECT_FALSE(make_workload(long_prefix).has_value());
}

}  // namespace
}  // namespace pitstop::bench
