#include "tokenizer_proc/request_checks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::tokenizer {
namespace {

messages::SchedulerHello replica() {
    messages::SchedulerHello hello;
    hello.vocab_size = 100;
    hello.context_len = 16;
    hello.eos_ids = {TokenId{9}, TokenId{3}};
    return hello;
}

std::string problem(const RequestChecks& checks, const messages::Generate& message) {
    const std::optional<Error> error = checks.problem_of(message);
    return error ? error->message : "";
}

messages::Generate prompt_of(std::vector<TokenId> ids) {
    messages::Generate message;
    message.input_ids = std::move(ids);
    return message;
}

TEST(RequestChecks, AnIdBeyondTheVocabularyIsNamedWithItsField) {
    const RequestChecks checks(replica(), 1, std::nullopt);
    EXPECT_EQ(
        problem(checks, prompt_of({TokenId{1}, TokenId{100}})),
        "input_ids[1] is token 100; the model has tokens [0, 100)"
    );
    messages::Generate message = prompt_of({TokenId{1}});
    EXPECT_EQ(problem(checks, message), "");
    message.sampling.bad_tokens = {{TokenId{1}, TokenId{-1}}};
    EXPECT_EQ(
        problem(checks, message),
        "sampling.bad_tokens[1] is token -1; the model has tokens [0, 100)"
    );
}

TEST(RequestChecks, APromptThatComesAsTextIsCheckedOnceItIsTokenized) {
    const RequestChecks checks(replica(), 1, std::nullopt);
    messages::Generate message;
    message.text = "a text";
    message.sampling.max_new_tokens = 8;
    EXPECT_EQ(problem(checks, message), "");
    EXPECT_FALSE(checks.problem_of_prompt(message, std::vector<TokenId>(8, TokenId{1})));
    EXPECT_TRUE(checks.problem_of_prompt(message, std::vector<TokenId>(9, TokenId{1})));
    EXPECT_TRUE(checks.problem_of_prompt(message, {}));
}

TEST(RequestChecks, AReplicaThatTheTreeDoesNotHaveIsRefused) {
    const RequestChecks checks(replica(), 2, std::nullopt);
    messages::Generate message = prompt_of({TokenId{1}});
    message.replica = 1;
    EXPECT_EQ(problem(checks, message), "");
    message.replica = 2;
    EXPECT_EQ(problem(checks, message), "replica is 2; accepted is [0, 2)");
}

TEST(RequestChecks, TheTokenizersEndTokenEndsAnOutputIfTheModelHasIt) {
    const messages::SamplingParams plain;
    messages::SamplingParams ignores;
    ignores.ignore_eos = true;
    const RequestChecks checks(replica(), 1, TokenId{5});
    EXPECT_EQ(checks.end_tokens(), (std::vector{TokenId{3}, TokenId{5}, TokenId{9}}));
    EXPECT_EQ(checks.further_stop(plain), TokenId{5});
    EXPECT_EQ(checks.further_stop(ignores), std::nullopt);
    const RequestChecks of_the_model(replica(), 1, TokenId{9});
    EXPECT_EQ(of_the_model.further_stop(plain), std::nullopt);
    const RequestChecks beyond(replica(), 1, TokenId{100});
    EXPECT_EQ(beyond.end_tokens(), (std::vector{TokenId{3}, TokenId{9}}));
    EXPECT_EQ(beyond.further_stop(plain), std::nullopt);
}

TEST(RequestChecks, TokensToDecodeMayBeTheTokenizersOrTheModels) {
    const RequestChecks checks(replica(), 1, std::nullopt);
    const std::vector ids{TokenId{119}};
    EXPECT_TRUE(checks.check_decodable(ids, 120));
    EXPECT_FALSE(checks.check_decodable(ids, 50));
    EXPECT_TRUE(checks.check_decodable(std::vector{TokenId{99}}, 50));
}

}  // namespace
}  // namespace pitstop::tokenizer
