// Tests that grammars are tried in a process of their own, whatever they do to it.
#include "grammar/trial.h"

#include "base/time.h"
#include "grammar/compiled_grammar.h"
#include "tests/grammar/small_vocabulary.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <string>
#include <unistd.h>
#include <vector>

namespace pitstop::grammar {
namespace {

using messages::Grammar;
using messages::GrammarKind;

class TrialsTest : public testing::Test {
  protected:
    void SetUp() override {
        if (!why_none().empty()) GTEST_SKIP() << why_none();
    }

    // A schema of optional properties in any combination: compiling it takes too long.
    static Grammar hostile() {
        std::string text = R"({"type": "object", "properties": {)";
        for (int i = 0; i < 20'000; ++i)
            text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
        return {GrammarKind::kJsonSchema, text + "}}"};
    }

    // A machine with a free core needs a second.
    static constexpr auto kPatience = std::chrono::seconds(5);

    // Returns the one child that this process has; -1: none.
    static pid_t child_of_this_process() {
        std::ifstream children("/proc/self/task/" + std::to_string(::gettid()) + "/children");
        pid_t pid = -1;
        children >> pid;
        return pid;
    }

    Trials trials_{small_vocabulary()};
};

TEST_F(TrialsTest, SayHowLargeAGrammarIsOrWhatIsWrong) {
    const auto good = trials_.run({GrammarKind::kRegex, "a+"});
    ASSERT_TRUE(good) << good.error().message;
    EXPECT_GT(good->bytes, 0);
    const auto bad = trials_.run({GrammarKind::kRegex, "(a"});
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(bad.error().message.starts_with("regex cannot be compiled: "))
        << bad.error().message;
}

// A grammar of many states takes more memory than a small one, and no more than is allowed.
TEST_F(TrialsTest, SayHowMuchMemoryCompilingTook) {
    const auto small = trials_.run({GrammarKind::kRegex, "a"});
    std::string words = "a";
    for (int word = 0; word < 2000; ++word) {
        words += '|';
        for (int bit = 0; bit < 11; ++bit) words += (word >> bit & 1) != 0 ? 'a' : 'b';
    }
    const auto large = trials_.run({GrammarKind::kRegex, words});
    ASSERT_TRUE(small) << small.error().message;
    ASSERT_TRUE(large) << large.error().message;
    EXPECT_GT(large->peak_bytes, large->bytes);
    EXPECT_GT(large->peak_bytes, 2 * small->peak_bytes);
    EXPECT_LE(large->peak_bytes, Trials::kMemoryBytes);
}

// The compiler only warns of some keywords and ignores them, so outputs would not be valid.
TEST_F(TrialsTest, RefuseAKeywordThatWouldBeIgnored) {
    for (const std::string keyword :
         {R"("uniqueItems": true)",
          R"("contains": {"type": "integer"})",
          R"("not": {"type": "null"})"}) {
        const auto tried = trials_.run(
            {GrammarKind::kJsonSchema, R"({"type": "array", "items": {}, )" + keyword + "}"}
        );
        ASSERT_FALSE(tried) << keyword;
        const std::string name = keyword.substr(1, keyword.find('"', 1) - 1);
        EXPECT_NE(tried.error().message.find(name), std::string::npos) << tried.error().message;
    }
}

TEST_F(TrialsTest, AHostileGrammarDelaysNobody) {
    ASSERT_TRUE(trials_.run({GrammarKind::kRegex, "a+"}));  // starts the process
    auto slow = std::async(std::launch::async, [&] { return trials_.run(hostile()); });
    const TimePoint begin = Clock::now();
    int num_tried = 0;
    while (slow.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
        const TimePoint one = Clock::now();
        const auto tried =
            trials_.run({GrammarKind::kRegex, "[ab]{" + std::to_string(++num_tried) + "}"});
        EXPECT_TRUE(tried) << tried.error().message;
        EXPECT_LT(Clock::now() - one, kPatience);
    }
    const auto verdict = slow.get();
    ASSERT_FALSE(verdict) << verdict->bytes << " bytes";
    // The error blames the grammar, unless a busy machine kept the process from using its CPU
    // seconds in time.
    const bool is_late = Clock::now() - begin >= Trials::kWallMax;
    const ErrorCode code = verdict.error().code;
    EXPECT_TRUE(code == ErrorCode::kInvalidArgument || (is_late && code == ErrorCode::kUnavailable))
        << verdict.error().message;
    EXPECT_LT(Clock::now() - begin, Trials::kWallMax + std::chrono::seconds(20));
    RecordProperty("tried_meanwhile", num_tried);
    EXPECT_TRUE(trials_.run({GrammarKind::kRegex, "a+"}));
}

// A grammar that a busy machine did not finish may be good: its refusal must not be kept.
TEST_F(TrialsTest, AMachineThatIsTooBusyIsToldFromABadGrammar) {
    Trials hurried(small_vocabulary(), std::chrono::milliseconds(300));
    const auto tried = hurried.run(hostile());
    ASSERT_FALSE(tried);
    EXPECT_EQ(tried.error().code, ErrorCode::kUnavailable) << tried.error().message;
}

// messages/sampling.cpp counts no brackets inside quotes, so this grammar reaches the trial.
TEST_F(TrialsTest, ADeepGrammarEndsItsProcessAlone) {
    const std::string deep(100'000, '(');
    for (const GrammarKind kind : {GrammarKind::kRegex, GrammarKind::kEbnf})
        EXPECT_FALSE(trials_.run({kind, "\"" + deep})) << name_of(kind);
    EXPECT_TRUE(trials_.run({GrammarKind::kRegex, "a+"}));
}

// A process that neither reads nor ends delays no caller for ever.
TEST_F(TrialsTest, P5_AProcessThatStandsStillIsReplaced) {
    Trials hurried(small_vocabulary(), std::chrono::milliseconds(500));
    ASSERT_TRUE(hurried.run({GrammarKind::kRegex, "a"}));
    const pid_t pid = child_of_this_process();
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    const auto tried = hurried.run({GrammarKind::kRegex, "a"});
    ASSERT_FALSE(tried);
    EXPECT_EQ(tried.error().code, ErrorCode::kUnavailable) << tried.error().message;
    hurried.stop();  // returns although the process is stopped
}

TEST_F(TrialsTest, SayThatNoTokenEndsAnOutput) {
    Vocabulary vocabulary = small_vocabulary();
    vocabulary.end_ids.clear();
    Trials trials(vocabulary);
    const auto tried = trials.run({GrammarKind::kRegex, "a"});
    ASSERT_FALSE(tried);
    EXPECT_EQ(tried.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace pitstop::grammar

int main(int argc, char** argv) {
    if (argc == 3 && argv[1] == pitstop::grammar::Trials::kArgument)
        return pitstop::grammar::serve_trials(std::atoi(argv[2]));
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
