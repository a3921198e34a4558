#include "base/flags.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace pitstop {
namespace {

struct Parsed {
    FlagSet flags{"program", "What it is for."};
    std::string name = "nobody";
    int rank = 7;
    std::int64_t bytes = 0;
    double ratio = 0.5;
    bool is_loud = false;
    std::vector<std::string> rules{};
    std::optional<std::string> key{};
    std::optional<std::int64_t> num{};
    std::optional<std::uint64_t> seed{};

    Parsed() {
        flags.add("name", &name, "a name");
        flags.add("rank", &rank, "a rank");
        flags.add("bytes", &bytes, "some bytes");
        flags.add("ratio", &ratio, "a ratio");
        flags.add("loud", &is_loud, "a switch");
        flags.add("rule", &rules, "a rule");
        flags.add("key", &key, "a key");
        flags.add("num", &num, "a number");
        flags.add("seed", &seed, "a seed");
    }
    Result<> parse(std::vector<std::string> args) {
        std::vector<char*> argv{const_cast<char*>("program")};
        for (std::string& arg : args) argv.push_back(arg.data());
        return flags.parse(static_cast<int>(argv.size()), argv.data());
    }
    std::string error_of(std::vector<std::string> args) {
        const Result<> result = parse(std::move(args));
        if (result) return "";
        EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
        return result.error().message;
    }
};

TEST(Flags, TakeValuesInBothForms) {
    Parsed p;
    ASSERT_TRUE(p.parse({"--name", "a b", "--rank=-3", "--bytes=9000000000", "--ratio", "1e-3"}));
    EXPECT_EQ(p.name, "a b");
    EXPECT_EQ(p.rank, -3);
    EXPECT_EQ(p.bytes, 9'000'000'000);
    EXPECT_EQ(p.ratio, 1e-3);
    EXPECT_FALSE(p.is_loud);
}

TEST(Flags, KeepDefaultsAndCollectRepeatedOnes) {
    Parsed p;
    ASSERT_TRUE(p.parse({"--rule", "x", "--loud", "--rule=y", "--name="}));
    EXPECT_EQ(p.rules, (std::vector<std::string>{"x", "y"}));
    EXPECT_TRUE(p.is_loud);
    EXPECT_EQ(p.name, "");
    EXPECT_EQ(p.rank, 7);
}

TEST(Flags, KeepWhatIsNotAFlagAndEverythingAfterTwoDashes) {
    Parsed p;
    ASSERT_TRUE(p.parse({"one", "--loud", "-", "--", "--rank", "-x"}));
    EXPECT_EQ(p.flags.positional(), (std::vector<std::string>{"one", "-", "--rank", "-x"}));
    EXPECT_EQ(p.rank, 7);
}

TEST(Flags, TellAnEmptyValueFromNone) {
    Parsed without;
    ASSERT_TRUE(without.parse({"--rank", "1"}));
    EXPECT_EQ(without.key, std::nullopt);
    Parsed with;
    ASSERT_TRUE(with.parse({"--key", ""}));
    EXPECT_EQ(with.key, "");
}

TEST(Flags, TellANumberFromNone) {
    Parsed without;
    ASSERT_TRUE(without.parse({"--rank", "1"}));
    EXPECT_EQ(without.num, std::nullopt);
    EXPECT_EQ(without.seed, std::nullopt);
    Parsed with;
    ASSERT_TRUE(with.parse({"--num=-1", "--seed", "18446744073709551615"}));
    EXPECT_EQ(with.num, -1);
    EXPECT_EQ(with.seed, 18446744073709551615U);
    EXPECT_EQ(
        Parsed().error_of({"--seed=-1"}), "--seed takes a whole number of at least 0, not '-1'"
    );
}

TEST(Flags, RefuseWhatTheyDoNotUnderstand) {
    EXPECT_EQ(Parsed().error_of({"--nme", "x"}), "unknown flag '--nme'");
    EXPECT_EQ(Parsed().error_of({"-n"}), "unknown flag '-n'");
    EXPECT_EQ(Parsed().error_of({"--rank"}), "--rank needs a value");
    EXPECT_EQ(Parsed().error_of({"--rank", "3x"}), "--rank takes a whole number, not '3x'");
    EXPECT_EQ(Parsed().error_of({"--rank", ""}), "--rank takes a whole number, not ''");
    EXPECT_EQ(Parsed().error_of({"--rank", "2147483648"}), "--rank: '2147483648' is out of range");
    EXPECT_EQ(Parsed().error_of({"--ratio=half"}), "--ratio takes a number, not 'half'");
    EXPECT_EQ(Parsed().error_of({"--loud=yes"}), "--loud takes no value");
}

TEST(Flags, HelpNamesEachFlagItsMeaningAndDefault) {
    Parsed p;
    ASSERT_TRUE(p.parse({"--help"}));
    EXPECT_TRUE(p.flags.help_asked());
    const std::string help = p.flags.help();
    EXPECT_NE(help.find("program: What it is for."), help.npos);
    EXPECT_NE(help.find("--rank N"), help.npos);
    EXPECT_NE(help.find("a rank (default 7)"), help.npos);
    EXPECT_EQ(help.find("--loud X"), help.npos);
}

TEST(Flags, AUsageErrorExitsWithTwo) {
    EXPECT_EQ(Parsed().flags.fail(make_error(ErrorCode::kInvalidArgument, "no")), 2);
}

}  // namespace
}  // namespace pitstop
