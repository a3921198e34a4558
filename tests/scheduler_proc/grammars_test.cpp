// Grammars: each is compiled once, kept while requests use it, and forgotten when others have taken
// its place.
#include "scheduler_proc/grammars.h"

#include "messages/grammar_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

namespace pitstop::scheduler {
namespace {

using messages::Grammar;
using messages::GrammarId;
using messages::GrammarKind;

Grammar regex(const std::string& text) { return {GrammarKind::kRegex, text}; }

messages::SamplingParams sampling_of(const Grammar& grammar) {
    messages::SamplingParams sampling;
    sampling.regex = grammar.text;
    return sampling;
}

messages::WorkerCompiled compiled(GrammarId id, std::int64_t bytes = 1000) {
    messages::WorkerCompiled answer;
    answer.id = id;
    answer.bytes = bytes;
    return answer;
}

messages::WorkerCompiled failed(GrammarId id, ErrorCode code) {
    messages::WorkerCompiled answer = compiled(id, 0);
    answer.verdict = Error{code, "it is bad"};
    return answer;
}

template <class Order>
std::vector<Order> orders(const TurnOutput& out) {
    std::vector<Order> all;
    for (const ToWorkers& order : out.workers) {
        if (const Order* const one = std::get_if<Order>(&order)) all.push_back(*one);
    }
    return all;
}

TEST(SchedulerGrammars, AreCompiledOnceForAllTheirRequests) {
    Grammars grammars;
    TurnOutput out;
    const GrammarId id = grammars.take(regex("a"), out);
    EXPECT_FALSE(grammars.is_compiled(id));
    EXPECT_EQ(grammars.take(regex("a"), out), id);
    const GrammarId other = grammars.take({GrammarKind::kEbnf, "a"}, out);
    EXPECT_NE(other, id) << "the same text of another kind";
    const auto ordered = orders<messages::WorkerCompile>(out);
    ASSERT_EQ(ordered.size(), 2u);
    EXPECT_EQ(ordered[0].id, id);
    EXPECT_EQ(ordered[0].grammar, regex("a"));
    EXPECT_TRUE(grammars.record(compiled(id), out));
    EXPECT_TRUE(grammars.is_compiled(id));
    EXPECT_FALSE(grammars.record(compiled(id), out)) << "twice";
    EXPECT_FALSE(grammars.record(compiled(GrammarId{99}), out)) << "not ordered";
    grammars.give_back(id, out);
    grammars.give_back(id, out);
    EXPECT_EQ(grammars.take(regex("a"), out), id) << "kept for later";
    EXPECT_EQ(orders<messages::WorkerCompile>(out).size(), 2u);
    EXPECT_EQ(orders<messages::WorkerForget>(out).size(), 0u);
}

TEST(SchedulerGrammars, TheLeastRecentlyUsedIsForgottenAndNoneThatIsUsed) {
    Grammars grammars;
    TurnOutput out;
    const std::int64_t bytes = Grammars::kUnusedBytesMax / 4;
    std::vector<GrammarId> ids;
    for (const char* text : {"a", "b", "c", "d", "e", "f"}) {
        ids.push_back(grammars.take(regex(text), out));
        grammars.record(compiled(ids.back(), bytes), out);
    }
    EXPECT_EQ(orders<messages::WorkerForget>(out).size(), 0u) << "all are in use";
    for (const int i : {1, 0, 2, 3}) grammars.give_back(ids[static_cast<std::size_t>(i)], out);
    EXPECT_EQ(orders<messages::WorkerForget>(out).size(), 0u);
    EXPECT_EQ(grammars.take(regex("b"), out), ids[1]) << "used again";
    grammars.give_back(ids[1], out);
    grammars.give_back(ids[4], out);
    const auto forgotten = orders<messages::WorkerForget>(out);
    ASSERT_EQ(forgotten.size(), 1u);
    EXPECT_EQ(forgotten[0].grammars, std::vector{ids[0]});
    EXPECT_NE(grammars.take(regex("a"), out), ids[0]) << "compiled anew";
}

TEST(SchedulerGrammars, OnlyVerdictsOnTheGrammarItselfAreKept) {
    Grammars grammars;
    TurnOutput out;
    const GrammarId bad = grammars.take(regex("("), out);
    const GrammarId unlucky = grammars.take(regex("a"), out);
    EXPECT_FALSE(grammars.problem_of(sampling_of(regex("("))));
    grammars.record(failed(bad, ErrorCode::kInvalidArgument), out);
    grammars.record(failed(unlucky, ErrorCode::kUnavailable), out);
    grammars.give_back(bad, out);
    grammars.give_back(unlucky, out);
    const auto why = grammars.problem_of(sampling_of(regex("(")));
    ASSERT_TRUE(why);
    EXPECT_EQ(why->message, "it is bad");
    EXPECT_FALSE(grammars.problem_of(sampling_of(regex("a"))));
    EXPECT_NE(grammars.take(regex("a"), out), unlucky);
    EXPECT_EQ(orders<messages::WorkerForget>(out).size(), 0u) << "the workers have neither";
}

TEST(SchedulerGrammars, AGrammarWhoseRequestsHaveEndedIsStillCompiled) {
    Grammars grammars;
    TurnOutput out;
    const GrammarId id = grammars.take(regex("a"), out);
    grammars.give_back(id, out);
    EXPECT_EQ(grammars.num_compiling(), 1);
    EXPECT_TRUE(grammars.record(compiled(id), out));
    EXPECT_EQ(grammars.num_compiling(), 0);
    EXPECT_EQ(grammars.take(regex("a"), out), id);
    EXPECT_TRUE(grammars.is_compiled(id));
}

// The grammars of the first requests fill the room; each of these requests ends, and another
// grammar takes its place.
TEST(SchedulerGrammars, ThoseInUseHaveBoundedBytesAndOthersWaitForRoom) {
    constexpr std::int64_t kBytes = messages::kCompiledGrammarBytesMax;
    constexpr auto kHeld = static_cast<std::size_t>(Grammars::kHeldBytesMax / kBytes);
    constexpr std::size_t kNum = 3 * kHeld;
    Grammars grammars;
    TurnOutput out;
    std::vector<GrammarId> ids;
    for (std::size_t i = 0; i < kNum; ++i)
        ids.push_back(grammars.take(regex("a" + std::to_string(i)), out));
    EXPECT_EQ(grammars.take(regex("a" + std::to_string(kNum - 1)), out), ids.back());
    grammars.give_back(ids.back(), out);
    for (std::size_t i = 0; i < kNum; ++i) {
        const auto ordered = orders<messages::WorkerCompile>(out);
        ASSERT_EQ(ordered.size(), std::min(kNum, kHeld + (i < kHeld ? 0 : i - kHeld + 1))) << i;
        EXPECT_EQ(ordered[i].id, ids[i]) << "the oldest first";
        EXPECT_FALSE(grammars.is_compiled(ids[i]));
        EXPECT_TRUE(grammars.record(compiled(ids[i], kBytes), out));
        EXPECT_TRUE(grammars.is_compiled(ids[i]));
        if (i + 1 >= kHeld) grammars.give_back(ids[i + 1 - kHeld], out);
    }
}

TEST(SchedulerGrammars, AGrammarThatWaitedInVainIsNotCompiled) {
    constexpr std::int64_t kBytes = messages::kCompiledGrammarBytesMax;
    Grammars grammars;
    TurnOutput out;
    std::vector<GrammarId> ids;
    const auto num_held = static_cast<std::size_t>(Grammars::kHeldBytesMax / kBytes);
    for (std::size_t i = 0; i < num_held; ++i)
        ids.push_back(grammars.take(regex("a" + std::to_string(i)), out));
    const GrammarId left = grammars.take(regex("b"), out);
    const GrammarId next = grammars.take(regex("c"), out);
    grammars.give_back(left, out);
    grammars.record(failed(ids.front(), ErrorCode::kInvalidArgument), out);
    const auto ordered = orders<messages::WorkerCompile>(out);
    ASSERT_EQ(ordered.size(), num_held + 1) << "a failed one has no bytes";
    EXPECT_EQ(ordered.back().id, next);
    EXPECT_NE(grammars.take(regex("b"), out), left);
}

TEST(SchedulerGrammars, WorkersThatCompileNoneSayWhy) {
    Grammars grammars;
    grammars.open("no library");
    const auto why = grammars.problem_of(sampling_of(regex("a")));
    ASSERT_TRUE(why);
    EXPECT_EQ(why->code, ErrorCode::kUnsupported);
    EXPECT_EQ(why->message, "regex: no library");
    EXPECT_FALSE(grammars.problem_of({}));
}

}  // namespace
}  // namespace pitstop::scheduler
