#include "text/stop_matcher.h"

#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace pitstop::text {
namespace {

std::shared_ptr<const StopStrings> stops_of(const std::vector<std::string>& stops) {
    auto created = StopStrings::create(stops);
    EXPECT_TRUE(created) << created.error().message;
    return *created;
}

struct Outcome {
    std::string text{};
    std::optional<std::size_t> stop_index{};
    std::size_t position_bytes = 0;
    friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(StopMatcher matcher, const std::vector<std::string>& pieces) {
    Outcome outcome;
    for (const std::string& piece : pieces) {
        const auto match = matcher.push(piece, outcome.text);
        if (!match) continue;
        outcome.stop_index = match->stop_index;
        outcome.position_bytes = match->position_bytes;
    }
    matcher.finish(outcome.text);
    return outcome;
}

TEST(StopMatcher, TrimsTheStopStringAndWhatFollows) {
    const auto stops = stops_of({"END"});
    EXPECT_EQ(run({stops, StopMatcher::Trim::kStop}, {"one END two"}), (Outcome{"one ", 0, 4}));
    EXPECT_EQ(
        run({stops, StopMatcher::Trim::kNothing}, {"one END two"}), (Outcome{"one END", 0, 4})
    );
    EXPECT_EQ(
        run({stops, StopMatcher::Trim::kStop}, {"one EN", " E", "N"}), (Outcome{"one EN EN", {}, 0})
    );
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeAStop) {
    StopMatcher matcher(stops_of({"abcd", "bx"}), StopMatcher::Trim::kStop);
    std::string text;
    EXPECT_FALSE(matcher.push("zab", text));
    EXPECT_EQ(text, "z");
    EXPECT_FALSE(matcher.push("c", text));
    EXPECT_EQ(text, "z");
    EXPECT_FALSE(matcher.push("b", text));  // "abcb": only the last byte may still begin "bx"
    EXPECT_EQ(text, "zabc");
    const auto match = matcher.push("x!", text);
    ASSERT_TRUE(match);
    EXPECT_EQ(match->stop_index, 1u);
    EXPECT_EQ(match->position_bytes, 4u);
    EXPECT_EQ(text, "zabc");
}

TEST(StopMatcher, TheFirstCompleteMatchWins) {
    // A stop text that is a prefix of another one is complete first.
    EXPECT_EQ(
        run({stops_of({"abc", "ab"}), StopMatcher::Trim::kStop}, {"xabc"}), (Outcome{"x", 1, 1})
    );
    // Of stop texts that are complete at the same byte, the longest counts.
    EXPECT_EQ(
        run({stops_of({"c", "abc", "bc"}), StopMatcher::Trim::kStop}, {"xabc"}),
        (Outcome{"x", 1, 1})
    );
    // A stop text inside another one that is not complete yet.
    EXPECT_EQ(
        run({stops_of({"abcd", "bc"}), StopMatcher::Trim::kStop}, {"a", "b", "c", "d"}),
        (Outcome{"a", 1, 1})
    );
    // A stop text that overlaps itself.
    EXPECT_EQ(
        run({stops_of({"aab"}), StopMatcher::Trim::kStop}, {"aa", "aab"}), (Outcome{"aa", 0, 2})
    );
    // A stop text that is listed twice: the first index counts.
    EXPECT_EQ(
        run({stops_of({"x", "ab", "ab"}), StopMatcher::Trim::kStop}, {"ab"}), (Outcome{"", 1, 0})
    );
}

TEST(StopMatcher, CutsBetweenCodePoints) {
    const auto stops = stops_of({"。終", "😀"});
    EXPECT_EQ(
        run({stops, StopMatcher::Trim::kStop}, {"これ。", "終わり"}), (Outcome{"これ", 0, 6})
    );
    // The pieces cut a code point; the output has only whole code points.
    StopMatcher matcher(stops, StopMatcher::Trim::kStop);
    std::string text;
    matcher.push("a\xf0\x9f\x98", text);
    EXPECT_EQ(text, "a");
    EXPECT_TRUE(matcher.push("\x80", text));
    EXPECT_EQ(text, "a");
}

TEST(StopMatcher, NothingToStopForHoldsNothing) {
    EXPECT_EQ(run({stops_of({}), StopMatcher::Trim::kStop}, {"a", "b"}), (Outcome{"ab", {}, 0}));
}

// The definition: searches the whole text at every position.
Outcome by_definition(
    const std::vector<std::string>& stops, const std::string& text, StopMatcher::Trim trim
) {
    for (std::size_t end = 1; end <= text.size(); ++end) {
        std::optional<std::size_t> best;
        for (std::size_t i = 0; i < stops.size(); ++i) {
            const bool ends_here = std::string_view(text).substr(0, end).ends_with(stops[i]);
            if (ends_here && (!best || stops[i].size() > stops[*best].size())) best = i;
        }
        if (!best) continue;
        const std::size_t begin = end - stops[*best].size();
        return {text.substr(0, trim == StopMatcher::Trim::kStop ? begin : end), best, begin};
    }
    return {text, {}, 0};
}

TEST(StopMatcher, DoesNotDependOnHowTheTextIsCut) {
    const std::vector<std::string> letters = {"a", "b", "ab", "é", "中"};
    std::mt19937 random(5);
    const auto word = [&](std::size_t len_max) {
        std::string text;
        for (std::size_t n = 1 + random() % len_max; n > 0; --n)
            text += letters[random() % letters.size()];
        return text;
    };
    for (int round = 0; round < 20000; ++round) {
        std::vector<std::string> stops;
        for (std::size_t n = random() % 5; n > 0; --n) stops.push_back(word(4));
        std::string all;
        std::vector<std::string> pieces;
        for (std::size_t n = random() % 8; n > 0; --n) {
            pieces.push_back(word(4));
            all += pieces.back();
        }
        const auto trim =
            random() % 2 == 0 ? StopMatcher::Trim::kStop : StopMatcher::Trim::kNothing;
        const Outcome outcome = run({stops_of(stops), trim}, pieces);
        ASSERT_EQ(outcome, by_definition(stops, all, trim)) << all;
        ASSERT_FALSE(find_invalid_utf8(outcome.text));
    }
}

TEST(StopStrings, AreBounded) {
    EXPECT_TRUE(StopStrings::create(std::vector<std::string>(StopStrings::kStopsMax, "a")));
    EXPECT_FALSE(StopStrings::create(std::vector<std::string>(StopStrings::kStopsMax + 1, "a")));
    EXPECT_TRUE(StopStrings::create({std::string(StopStrings::kStopBytesMax, 'a')}));
    EXPECT_FALSE(StopStrings::create({std::string(StopStrings::kStopBytesMax + 1, 'a')}));
    EXPECT_FALSE(StopStrings::create({""}));
    const auto bad = StopStrings::create({"a", "b\xff"});
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().message, "stop string 1 is not valid UTF-8 at byte 1");
}

}  // namespace
}  // namespace pitstop::text
