#include "tp_worker/model/request_state.h"

#include "grammar/compiled_grammar.h"
#include "tests/grammar/small_vocabulary.h"
#include "tp_worker/model/grammars.h"
#include "tp_worker/model/step_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(RequestState, CountsItsOwnOutputAsAHistoryWould) {
    messages::RequestSetup setup;
    setup.prompt_len = 2;
    setup.sampling.frequency_penalty = 1.0;
    setup.history = {TokenId{4}, TokenId{5}};
    RequestState running(setup, 100);
    running.record_sampled(TokenId{5});
    running.record_sampled(TokenId{9});
    running.record_sampled(TokenId{-1});  // not finite: ignored
    setup.history = {TokenId{4}, TokenId{5}, TokenId{5}, TokenId{9}};
    const RequestState resumed(setup, 100);
    ASSERT_EQ(running.counts().size(), resumed.counts().size());
    for (std::size_t i = 0; i < resumed.counts().size(); ++i) {
        EXPECT_EQ(running.counts()[i].id, resumed.counts()[i].id);
        EXPECT_EQ(running.counts()[i].num_output, resumed.counts()[i].num_output);
    }
    EXPECT_EQ(running.last_token(), TokenId{-1});
}

std::vector<TokenId> banned(const RequestState& request, std::int64_t output_index) {
    std::vector<TokenId> ids;
    for (const kernels::LogitBias& bias : request.biases(output_index)) {
        if (bias.bias == -kInfinity) ids.push_back(bias.id);
    }
    return ids;
}

// A bad sequence is matched against the output alone, not the prompt. A recomputed request is given
// its output again.
TEST(RequestState, TheLastTokenOfABadSequenceIsBannedAfterTheOthers) {
    messages::RequestSetup setup;
    setup.prompt_len = 2;
    setup.history = {TokenId{1}, TokenId{2}};
    setup.sampling.logit_bias = {{3, 2.0}, {8, 1.0}};
    setup.sampling.bad_tokens = {
        {TokenId{1}, TokenId{2}, TokenId{3}}, {TokenId{2}, TokenId{5}}, {TokenId{9}}};
    RequestState request(setup, 10);
    const auto ids = [](std::initializer_list<int> numbers) {
        std::vector<TokenId> all;
        for (const int number : numbers) all.push_back(TokenId{number});
        return all;
    };
    const std::vector<std::pair<int, std::vector<TokenId>>> steps{
        {1, ids({9})}, {1, ids({9})}, {2, ids({3, 5, 9})}, {4, ids({9})}, {2, ids({5, 9})}};
    EXPECT_EQ(banned(request, 0), ids({9}));  // 1 and 2 are in the prompt
    for (std::size_t i = 0; i < steps.size(); ++i) {
        request.record_sampled(TokenId{steps[i].first});
        setup.history.push_back(TokenId{steps[i].first});
        const auto index = static_cast<std::int64_t>(i) + 1;
        EXPECT_EQ(banned(request, index), steps[i].second) << i;
        EXPECT_EQ(banned(RequestState(setup, 10), index), steps[i].second) << i;
    }
    EXPECT_EQ(request.biases(9).size(), 4u);  // the biases of 3 and 8, the bans of 5 and 9
    setup.sampling.num_output_in_prompt = 2;
    setup.history.resize(2);
    EXPECT_EQ(banned(RequestState(setup, 10), 0), ids({3, 5, 9}));
}

// The bias, added to a logit and divided by the smallest temperature, is still finite.
TEST(RequestState, ABiasOfAnySizeStaysFinite) {
    messages::RequestSetup setup;
    setup.sampling.logit_bias = {{0, 1e300}, {1, -1e300}, {2, 3.0}};
    const RequestState request(setup, 10);
    std::vector<float> biases;
    for (const kernels::LogitBias& bias : request.biases(0)) biases.push_back(bias.bias);
    EXPECT_EQ(biases, (std::vector{1e30f, -1e30f, 3.f}));
    EXPECT_TRUE(std::isfinite((1e30f + 1e5f) / static_cast<float>(kTemperatureMin)));
}

TEST(RequestState, ATemperatureTooSmallToDivideByIsGreedy) {
    messages::RequestSetup setup;
    setup.sampling.temperature = 1e-30;
    EXPECT_EQ(RequestState(setup, 10).draw(0).temperature, 0.f);
    setup.sampling.temperature = 1e-3;
    EXPECT_EQ(RequestState(setup, 10).draw(0).temperature, 1e-3f);
}

// The slot of a request that has ended may stay free for long.
TEST(RequestState, AForgottenGrammarIsFreedAtTheNextPlan) {
    if (!grammar::why_none().empty()) GTEST_SKIP() << grammar::why_none();
    const auto sorted = grammar::SortedVocabulary::make(grammar::small_vocabulary());
    ASSERT_TRUE(sorted);
    Grammars grammars;
    RequestSlots slots(3);
    std::vector<std::weak_ptr<const grammar::CompiledGrammar>> all;
    messages::StepPlan plan;
    for (int i = 0; i < 2; ++i) {
        const messages::GrammarId id{static_cast<std::uint64_t>(i) + 1};
        auto compiled =
            grammar::CompiledGrammar::compile({messages::GrammarKind::kRegex, "a*"}, **sorted);
        ASSERT_TRUE(compiled);
        all.emplace_back(*compiled);
        grammars.add(id, *std::move(compiled));
        messages::RequestSetup setup;
        setup.slot = SlotId{i};
        setup.key = RequestKey{static_cast<std::uint64_t>(i) + 1};
        setup.grammar = id;
        plan.setups.push_back(std::move(setup));
    }
    const auto vocab_len = static_cast<std::int64_t>(grammar::small_vocabulary().tokens.size());
    EXPECT_TRUE(set_up_requests(plan, vocab_len, &slots, &grammars));
    grammars.forget(messages::GrammarId{1});
    EXPECT_FALSE(all[0].expired()) << "a step under way may follow it";
    EXPECT_TRUE(set_up_requests({}, vocab_len, &slots, &grammars));
    EXPECT_TRUE(all[0].expired());
    EXPECT_FALSE(all[1].expired());
    slots[0]->record_sampled(grammar::id_of('b'));  // by a step that was under way
    slots[1]->record_sampled(grammar::id_of('a'));
    EXPECT_FALSE(slots[1]->mask().empty());
}

// Another request has the slot meanwhile. Following the output a second time uses none of the
// allowance, so the request ends where it would have ended without the retraction.
TEST(RequestState, P4_ARetractedRequestHasTheRestOfItsAllowance) {
    if (!grammar::why_none().empty()) GTEST_SKIP() << grammar::why_none();
    const grammar::Vocabulary vocabulary = grammar::small_vocabulary();
    const auto sorted = grammar::SortedVocabulary::make(vocabulary);
    ASSERT_TRUE(sorted);
    const auto compiled = grammar::CompiledGrammar::compile(
        {messages::GrammarKind::kEbnf, "root ::= e\ne ::= e e | [a-z ]"}, **sorted
    );
    ASSERT_TRUE(compiled);
    Grammars grammars;
    grammars.add(messages::GrammarId{1}, *compiled);
    RequestSlots slots(2);
    const auto set_up = [&](messages::RequestSetup setup) {
        messages::StepPlan plan;
        plan.setups.push_back(std::move(setup));
        const auto vocab_len = static_cast<std::int64_t>(vocabulary.tokens.size());
        EXPECT_TRUE(set_up_requests(plan, vocab_len, &slots, &grammars));
    };
    messages::RequestSetup setup;
    setup.key = RequestKey{7};
    setup.prompt_len = 1;
    setup.history = {grammar::id_of('b')};
    setup.grammar = messages::GrammarId{1};
    set_up(setup);
    const auto allowance = grammars.allowance_of(setup.key);
    while (allowance->left() > grammar::CpuAllowance::kMax / 2) {
        slots[0]->record_sampled(grammar::id_of('a'));
        setup.history.push_back(grammar::id_of('a'));
    }
    const Duration left = allowance->left();
    const std::vector<std::uint32_t> mask(slots[0]->mask().begin(), slots[0]->mask().end());
    messages::RequestSetup other = setup;
    other.key = RequestKey{8};
    other.history.resize(1);
    set_up(other);
    setup.slot = SlotId{1};
    set_up(setup);
    EXPECT_EQ(allowance->left(), left);
    EXPECT_EQ(mask, std::vector<std::uint32_t>(slots[1]->mask().begin(), slots[1]->mask().end()));
    EXPECT_TRUE(std::ranges::any_of(mask, [](std::uint32_t word) { return word != 0; }));
}

}  // namespace
}  // namespace pitstop::tp_worker
