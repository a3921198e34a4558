#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace pitstop {
namespace {

TEST(Log, ShowsWhatCannotBePrintedAsItsBytes) {
    EXPECT_EQ(printable("'generate' is unknown"), "'generate' is unknown");
    EXPECT_EQ(printable(std::string("a\0b\n\x1b[2J", 8)), "a\\x00b\\x0a\\x1b[2J");
    EXPECT_EQ(printable("\xc3\xa9"), "\\xc3\\xa9");
}

TEST(Log, AMessageStaysOneLineWhateverItQuotes) {
    ASSERT_TRUE(init_logging("tester", "info"));
    testing::internal::CaptureStderr();
    spdlog::info("refused '{}'", "x\n2026-01-01 error   tester: forged");
    spdlog::default_logger()->flush();
    const std::string line = testing::internal::GetCapturedStderr();
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_NE(line.find("tester: refused 'x\\x0a2026"), std::string::npos) << line;
}

}  // namespace
}  // namespace pitstop
