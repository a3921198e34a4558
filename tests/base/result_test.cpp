#include "base/result.h"

#include "base/ids.h"
#include "base/log.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace pitstop {
namespace {

Result<int> half(int x) {
    if (x % 2 != 0) return make_error(ErrorCode::kInvalidArgument, "{} is odd", x);
    return x / 2;
}

Result<int> quarter(int x) {
    ASSIGN_OR_RETURN(const int once, half(x));
    ASSIGN_OR_RETURN(const int twice, half(once));
    return twice;
}

Result<> check_quarter(int x) {
    RETURN_IF_ERROR(quarter(x));
    return Ok{};
}

TEST(Result, PassesValuesAndErrorsOn) {
    EXPECT_EQ(*quarter(12), 3);
    EXPECT_TRUE(check_quarter(12));
    const Result<> failed = check_quarter(6);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(failed.error().message, "3 is odd");
}

TEST(Result, HoldsWhatCanOnlyBeMoved) {
    Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
    const std::unique_ptr<int> moved = *std::move(result);
    EXPECT_EQ(*moved, 5);
}

TEST(Result, AccessToTheOtherSideAborts) {
    EXPECT_DEATH(static_cast<void>(*half(3)), "has_value");
    EXPECT_DEATH(static_cast<void>(half(4).error()), "has_value");
}

TEST(Error, CodesHaveDistinctNames) {
    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
        names.insert(name_of(static_cast<ErrorCode>(i)));
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::kInternal) + 1);
}

TEST(Check, PrintsTheConditionAndThePlace) {
    EXPECT_DEATH(CHECK(1 + 1 == 3), "result_test.cpp:[0-9]+.*1 \\+ 1 == 3");
}

TEST(Ids, CountUpAndGiveTheirNumber) {
    EXPECT_EQ(raw(next(StepId{41})), 42);
    static_assert(std::is_same_v<decltype(raw(PageId{})), std::int32_t>);
    static_assert(!std::is_convertible_v<PageId, SlotId>);
}

TEST(Log, RefusesALevelItDoesNotKnow) {
    const Result<> result = init_logging("test", "loud");
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("trace, debug, info"), std::string::npos);
    EXPECT_TRUE(init_logging("test", "off"));
    EXPECT_TRUE(init_logging("test", "warning"));
}

}  // namespace
}  // namespace pitstop
