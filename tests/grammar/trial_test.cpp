// Tests that grammars are tried in a process of their own, whatever they do to it.
#include "grammar/trial.h"

#include "base/time.h"
#include "grammar/compiled_grammar.h"
#include "tests/grammar/small_vocabulary.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
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

    // A schema whose properties may be left out in any number.
    static Grammar hostile() {
        std::string text = R"({"type": "object", "properties": {)";
        for (int i = 0; i < 20'000; ++i)
            text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
        return {GrammarKind::kJsonSchema, text + "}}"};
    }

    // A second on a machine that has a core for it.
    static constexpr auto kPatience = std::chrono::seconds(5);

    Trials trials_{small_vocabulary()};
};

TEST_F(TrialsTest, SayHowLargeAGrammarIsOrWhatIsWrong) {
    const auto good = trials_.run({GrammarKind::kRegex, "a+"});
    ASSERT_TRUE(good) << good.error().message;
    EXPECT_GT(*good, 0);
    const auto bad = trials_.run({GrammarKind::kRegex, "(a"});
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(bad.error().message.starts_with("regex cannot be compiled: "))
        << bad.error().message;
}

// The compiler ignores some keywords, with a warning: outputs would be invalid.
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
    ASSERT_TRUE(trials_.run({GrammarKind::kRegex, "a+"}));  // the process is there
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
    ASSERT_FALSE(verdict) << *verdict << " bytes";
    EXPECT_EQ(verdict.error().code, ErrorCode::kInvalidArgument);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(Trials::kWallSeconds + 20));
    RecordProperty("tried_meanwhile", num_tried);
    EXPECT_TRUE(trials_.run({GrammarKind::kRegex, "a+"}));
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
