// The ends of requests, and requests that only score their prompts.
#include "tests/scheduler_proc/expectations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace pitstop::scheduler {
namespace {

// Requests that ended because something was not finite, by kind.
std::array<std::int64_t, 3> num_ended_by(Rig& rig) {
    std::array<std::int64_t, 3> num{};
    for (const messages::NotFiniteCount& count : rig.status().not_finite)
        num.at(static_cast<std::size_t>(count.kind)) = count.requests;
    return num;
}

TEST(Scheduler, StopsAtEndOfSequenceUnlessToldToIgnoreIt) {
    FakeModel model{.eos_one_in = 4};
    Rig rig(model);
    Ask ask{.prompt = prompt_of(6), .max_new_tokens = 40};
    const RequestKey stopped = rig.send(ask);
    Ask ignoring = ask;
    ignoring.sampling.ignore_eos = true;
    const RequestKey ran_on = rig.send(ignoring);
    Ask late = ask;
    late.sampling.min_new_tokens = 20;
    const RequestKey masked = rig.send(late);
    rig.run();
    expect_all(rig, stopped, ask);
    expect_all(rig, ran_on, ignoring);
    expect_all(rig, masked, late);
    EXPECT_EQ(rig.of(stopped).finish->matched_token, TokenId{1});
    EXPECT_EQ(rig.of(stopped).tokens.back(), TokenId{1}) << "the stop token is part of the output";
    EXPECT_EQ(rig.of(ran_on).tokens.size(), 40u);
    EXPECT_GE(rig.of(masked).tokens.size(), 20u);
}

TEST(Scheduler, StopsAtAStopTokenEvenWhenIgnoringEndOfSequence) {
    Rig rig;
    Ask ask{.prompt = prompt_of(6), .max_new_tokens = 10};
    ask.sampling.stop_token_ids = {rig.expected(ask).tokens.at(3)};
    ask.sampling.ignore_eos = true;
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_EQ(rig.of(key).tokens.size(), 4u);
}

TEST(Scheduler, WithoutMaxNewTokensRunsToTheEndOfTheContext) {
    Rig rig({.context_len = 20});
    const Ask ask{.prompt = prompt_of(6), .max_new_tokens = std::nullopt};
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_EQ(rig.of(key).tokens.size(), 14u);
}

TEST(Scheduler, LogitsThatAreNotFiniteEndTheRequestAloneAndSaySo) {
    FakeModel model{.nan_one_in = 20};
    Rig rig(model);
    std::vector<std::pair<RequestKey, Ask>> sent;
    for (int i = 0; i < 6; ++i) {
        Ask ask{.prompt = prompt_of(4, 600 + i), .max_new_tokens = 20};
        sent.emplace_back(rig.send(ask), ask);
    }
    rig.run();
    int num_errors = 0;
    for (const auto& [key, ask] : sent) {
        expect_all(rig, key, ask);
        if (error_of(rig, key).empty()) continue;
        ++num_errors;
        EXPECT_EQ(error_of(rig, key), "not_finite");
        const std::string expected = fmt::format(
            "the logits were not finite for output token {}, in step ", rig.of(key).tokens.size()
        );
        EXPECT_TRUE(rig.of(key).finish->verdict.message.starts_with(expected));
        EXPECT_TRUE(rig.of(key).finish->verdict.message.ends_with(" under weight epoch 1"));
    }
    EXPECT_GT(num_errors, 0);
    EXPECT_LT(num_errors, 6);
    EXPECT_EQ(num_ended_by(rig), (std::array<std::int64_t, 3>{0, num_errors, 0}));
}

// Parameters: the token that is not finite, the chunk's size (P6), the first scored position, and
// the number of new tokens. The last two decide whether the token's logits are needed.
class TokenNotFinite : public testing::TestWithParam<std::tuple<int, int, int, int>> {};

TEST_P(TokenNotFinite, P6_IsNamedAndItsPagesAreNotShared) {
    const auto [at, chunk, start, num_new] = GetParam();
    FakeModel model{.overflowing = TokenId{999}};
    Rig rig(model, {.tokens_per_step_max = chunk});
    Ask ask{.prompt = prompt_of(30), .max_new_tokens = num_new};
    ask.prompt[static_cast<std::size_t>(at)] = model.overflowing;
    if (start >= 0) ask.logprobs = {.enabled = true, .prompt_start = start};
    const RequestKey first = rig.send(ask);
    rig.run();
    // The logits of position p give the score of token p + 1.
    const bool is_scored = start >= 0 && start < 30 && at + 1 >= start;
    const bool has_logits = is_scored || (at == 29 && num_new > 0);
    const std::string where =
        !has_logits ? fmt::format("the hidden state was not finite for prompt token {}, ", at)
        : at == 29  ? "the logits were not finite for output token 0, "
                    : fmt::format("the logits were not finite for prompt token {}, ", at + 1);
    EXPECT_EQ(error_of(rig, first), "not_finite");
    EXPECT_EQ(rig.of(first).finish->verdict.message.find(where), 0u)
        << rig.of(first).finish->verdict.message;
    EXPECT_TRUE(rig.of(first).tokens.empty());
    const RequestKey again = rig.send(ask);
    rig.run();
    EXPECT_LE(rig.of(again).counts->cached_tokens, at / 4 * 4);
    EXPECT_EQ(rig.of(again).finish->verdict.message.find(where), 0u)
        << "the same, and not what a page said";
}

INSTANTIATE_TEST_SUITE_P(
    Scheduler,
    TokenNotFinite,
    testing::Combine(
        testing::Values(0, 3, 4, 13, 28, 29),  // at
        testing::Values(4, 7, 29, 100),        // chunk
        testing::Values(-1, 0, 20, 30),        // scores from here on; -1: none
        testing::Values(0, 3)                  // new tokens
    )
);

// The result comes after the request has ended or was retracted. The pages that were shared when
// the step was planned must be forgotten, so that no later request finds them.
TEST(Scheduler, PagesOfAPassThatIsNotFiniteAreForgottenWhoeverIsLeft) {
    for (const bool is_retracted : {false, true}) {
        FakeModel model{.overflowing = TokenId{999}};
        Rig rig(model, {.tokens_per_step_max = 16});
        Ask ask{.prompt = prompt_of(30), .max_new_tokens = 3};
        ask.prompt[5] = model.overflowing;
        const RequestKey first = rig.send(ask);
        rig.turn();
        if (is_retracted) {
            rig.control(messages::PauseGeneration{.mode = messages::PauseMode::kRetract});
        } else {
            rig.control(messages::EndRequests{.keys = {first}});
        }
        rig.turn();
        rig.run();
        if (is_retracted) {
            rig.control(messages::ContinueGeneration{});
            rig.run();
        }
        const RequestKey again = rig.send(ask);
        rig.run();
        EXPECT_EQ(error_of(rig, again), "not_finite");
        EXPECT_LE(rig.of(again).counts->cached_tokens, 4);
        EXPECT_NE(rig.of(again).finish->verdict.message.find("prompt token 5,"), std::string::npos);
    }
}

// The second request begins on pages that the first is computing. The token that is not finite is
// on those pages, so the second's error must not name a token of its own.
TEST(Scheduler, ARequestOnPagesOfAPassUnderWayDoesNotNameATokenOfItsOwn) {
    for (const bool is_retracted : {false, true}) {
        FakeModel model{.overflowing = TokenId{999}};
        Rig rig(model, {.tokens_per_step_max = 16});
        Ask ask{.prompt = prompt_of(14), .max_new_tokens = 1};
        ask.prompt[5] = model.overflowing;
        const RequestKey first = rig.send(ask);
        rig.turn();
        ask.prompt.back() = TokenId{7};
        const RequestKey second = rig.send(ask);
        rig.turn();
        ASSERT_FALSE(rig.of(first).finish) << "its step is under way";
        if (is_retracted) {
            rig.control(messages::PauseGeneration{.mode = messages::PauseMode::kRetract});
            rig.turn();
        }
        rig.run();
        EXPECT_NE(
            rig.of(first).finish->verdict.message.find("for prompt token 5,"), std::string::npos
        );
        EXPECT_EQ(error_of(rig, second), "not_finite");
        EXPECT_GT(rig.of(second).counts->cached_tokens, 5);
        const std::string expected = "not finite at or before prompt token 12,";
        EXPECT_NE(rig.of(second).finish->verdict.message.find(expected), std::string::npos)
            << rig.of(second).finish->verdict.message;
    }
}

TEST(Scheduler, AResultThatNamesARowThatIsNotThereEndsTheReplica) {
    using Bad = messages::NotFiniteRow;
    for (const std::vector<Bad>& bad : std::vector<std::vector<Bad>>{
             {{.row = 1, .position = 3}},
             {{.row = -1, .position = 3}},
             {{.row = 0, .position = 4}},
             {{.row = 0, .position = -1}},
             {{.row = 0, .position = 1}, {.row = 0, .position = 2}}}) {
        Rig rig;
        rig.send({.prompt = prompt_of(4)});
        rig.turn();
        auto answers = rig.workers.run_one();
        std::get<messages::StepResult>(answers[0]).not_finite = bad;
        TurnInput in;
        in.workers = answers;
        const TurnOutput out = rig.turn(in);
        ASSERT_TRUE(out.fatal);
        EXPECT_NE(out.fatal->message.find("not_finite has"), std::string::npos);
    }
}

TEST(Scheduler, ATokenOutsideTheVocabularyEndsTheRequest) {
    Rig rig;
    const RequestKey key = rig.send({.prompt = prompt_of(4)});
    rig.turn();
    auto answers = rig.workers.run_one();
    std::get<messages::StepResult>(answers[0]).sampled.values[0] = TokenId{1000};
    TurnInput in;
    in.workers = answers;
    rig.turn(in);
    EXPECT_EQ(error_of(rig, key), "internal");
    rig.run();
}

TEST(Scheduler, ATokenThatBansLeftNoneOfEndsTheRequest) {
    Rig rig;
    const RequestKey key = rig.send({.prompt = prompt_of(4)});
    rig.turn();
    auto answers = rig.workers.run_one();
    std::get<messages::StepResult>(answers[0]).undrawn = {0};
    TurnInput in;
    in.workers = answers;
    rig.turn(in);
    EXPECT_EQ(error_of(rig, key), "invalid_argument");
    EXPECT_TRUE(rig.of(key).tokens.empty());
    rig.run();
}

TEST(Scheduler, UndrawnPlacesThatNoRowSampledAreFatal) {
    for (const std::vector<std::int64_t>& bad :
         {std::vector<std::int64_t>{-1},
          std::vector<std::int64_t>{1},
          std::vector<std::int64_t>{0, 0}}) {
        Rig rig;
        rig.send({.prompt = prompt_of(4)});
        rig.turn();
        auto answers = rig.workers.run_one();
        std::get<messages::StepResult>(answers[0]).undrawn = bad;
        TurnInput in;
        in.workers = answers;
        const TurnOutput out = rig.turn(in);
        ASSERT_TRUE(out.fatal);
        EXPECT_NE(out.fatal->message.find("undrawn has place"), std::string::npos);
    }
}

// ---- scoring ----

TEST(Scheduler, ScoresPromptsOverChunksAndTellsThemInTheFirstChunk) {
    for (const std::int64_t start : {0, 1, 2, 7, 12, 29, 30, 1000}) {
        for (const std::int64_t output_len : {0, 1, 4}) {
            SCOPED_TRACE(testing::Message() << "start " << start << " output " << output_len);
            Rig rig({}, {.tokens_per_step_max = 7});
            Ask ask{.prompt = prompt_of(30), .max_new_tokens = output_len};
            ask.logprobs = {.enabled = true, .prompt_start = start, .top = 2, .ids = {TokenId{5}}};
            const RequestKey first = rig.send(ask);
            rig.run();
            expect_all(rig, first, ask);
            const RequestKey again = rig.send(ask);  // now the prefix is cached
            rig.run();
            expect_all(rig, again, ask);
            if (start == 12 && output_len == 4) {
                EXPECT_EQ(rig.of(again).counts->cached_tokens, 8) << "positions 11.. are computed";
            }
        }
    }
}

TEST(Scheduler, AScoredPromptOfOneTokenHasNoScores) {
    Rig rig;
    Ask ask{.prompt = prompt_of(1), .max_new_tokens = 0};
    ask.logprobs = {.enabled = true, .prompt_start = 0};
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_TRUE(rig.of(key).prompt->logprobs.empty());
}

TEST(Scheduler, MaxNewTokensZeroOnlyScores) {
    Rig rig({.context_len = 30});
    Ask ask{.prompt = prompt_of(30), .max_new_tokens = 0};
    ask.logprobs = {.enabled = true, .prompt_start = 0};
    const RequestKey key = rig.send(ask);
    rig.run();
    expect_all(rig, key, ask);
    EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kLength);
    EXPECT_EQ(rig.of(key).num_chunks, 1);
    for (const messages::StepPlan& plan : rig.workers.plans()) {
        for (const messages::PlanRow& row : plan.rows) EXPECT_FALSE(row.output_index);
    }
}

}  // namespace
}  // namespace pitstop::scheduler
