// The oracles' books find faults: each test feeds one fault to a book.
#include "tests/sim/collection_book.h"
#include "tests/sim/fairness_book.h"
#include "tests/sim/not_finite_book.h"
#include "tests/sim/oracle.h"
#include "tests/sim/random.h"
#include "tests/sim/session_book.h"
#include "tests/sim/trainer_book.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace pitstop::sim {
namespace {

using messages::UpdateId;
using std::chrono::seconds;
using Kind = messages::NotFiniteKind;

constexpr TimePoint kNow{seconds(1)};
const Error kLost{ErrorCode::kAborted, "2 calls without a session take no effect"};
const Error kMalformed{ErrorCode::kInvalidArgument, "no such tensor"};

class TrainerBookTest : public testing::Test {
  protected:
    void collect(const std::string& bytes, std::uint64_t session = 0) {
        book.sent(bytes, session);
        book.acknowledged(kNow, bytes, session);
    }
    std::string commit(std::uint64_t update, std::set<std::string> bytes, bool is_whole = false) {
        book.took_effect({UpdateId{update}, std::move(bytes), is_whole}, /*is_mending=*/false);
        return oracle.problem().value_or("");
    }

    Oracle oracle;
    TrainerBook book{oracle};
    const std::string a0 = "ipc://@a-0", a1 = "ipc://@a-1", a2 = "ipc://@a-2", b0 = "ipc://@b-0";
};

TEST_F(TrainerBookTest, AWholeSetTakesEffect) {
    collect(a0);
    collect(a1);
    EXPECT_EQ(commit(7, {a0, a1}), "");
    collect(a2);  // begins the next set
    EXPECT_EQ(commit(8, {a2}), "");
}

TEST_F(TrainerBookTest, HalfASetIsFound) {
    collect(a0);
    collect(a1);
    EXPECT_NE(
        commit(7, {a1}).find("without 'ipc://@a-0', which was answered with ok"), std::string::npos
    );
}

TEST_F(TrainerBookTest, ACallAfterALossThatStandsAloneIsFound) {
    collect(a0);
    book.sent(a1, 0);  // it is not answered yet
    EXPECT_NE(commit(7, {a1}), "");
}

TEST_F(TrainerBookTest, ATrainerThatWasToldBeginsAnew) {
    collect(a0);
    collect(b0);
    book.refused(kNow, "a", kMalformed);  // the refusal loses no collected call
    book.sent(a1, 0);
    EXPECT_NE(commit(7, {a1}), "");
    Oracle other;
    TrainerBook again(other);
    for (const std::string& bytes : {a0, b0, a1}) again.sent(bytes, 0);
    again.acknowledged(kNow, a0, 0);
    again.acknowledged(kNow, b0, 0);
    again.refused(kNow, "a", kLost);
    again.took_effect({UpdateId{7}, {a1}, false}, false);
    EXPECT_EQ(other.problem(), std::nullopt);
    again.sent("ipc://@b-1", 0);
    again.took_effect({UpdateId{8}, {"ipc://@b-1"}, false}, false);
    EXPECT_NE(other.problem(), std::nullopt) << "the other trainer was not told";
}

TEST_F(TrainerBookTest, AWholeModelNeedsNothingThatWasLost) {
    collect(a0);
    book.sent(a1, 0);
    book.sent(b0, 0);
    EXPECT_EQ(commit(7, {a1, b0}, /*is_whole=*/true), "");
}

TEST_F(TrainerBookTest, ACallOfAnotherSessionIsFoundAndOneThatIsMissing) {
    book.began(kNow, 3, /*takes_unnamed=*/false);
    collect(a0, 3);
    collect(b0, 2);
    EXPECT_NE(commit(3, {a0, b0}).find("was sent to session 2"), std::string::npos);
    Oracle other;
    TrainerBook again(other);
    again.sent(a0, 3);
    again.acknowledged(kNow, a0, 0);
    again.took_effect({UpdateId{3}, {}, false}, false);
    EXPECT_NE(other.problem(), std::nullopt);
}

TEST_F(TrainerBookTest, AnEndThatFailsIsKnownAndADropIsNot) {
    for (const bool has_ended : {false, true}) {
        Oracle other;
        TrainerBook again(other);
        again.began(kNow, 3, /*takes_unnamed=*/true);
        again.sent(a0, 0);
        again.acknowledged(kNow, a0, 3);
        if (has_ended) again.ordered(messages::UpdateFinish{.update = UpdateId{3}});
        again.ordered(messages::UpdateDrop{.update = UpdateId{3}});
        again.sent(a1, 0);
        again.took_effect({UpdateId{4}, {a1}, false}, false);
        EXPECT_EQ(other.problem().has_value(), !has_ended);
    }
}

TEST_F(TrainerBookTest, TwoLabelsInOneVersionAreFound) {
    book.sent(a0, 0, "a");
    book.sent(b0, 0, "b");
    book.sent(a1, 0);
    book.took_effect({UpdateId{7}, {a0, a1}, false}, false);
    EXPECT_EQ(oracle.problem(), std::nullopt) << "one names none";
    EXPECT_NE(commit(8, {a0, b0}).find("with calls for 'a' and for 'b'"), std::string::npos);
}

TEST_F(TrainerBookTest, TwoLabelsInASessionAreFoundUnlessAllCallsNameIt) {
    book.began(kNow, 7, /*takes_unnamed=*/true);
    book.sent(a0, 7, "a");
    book.sent(b0, 7, "b");
    EXPECT_EQ(commit(7, {a0, b0}), "");
    book.began(kNow, 8, /*takes_unnamed=*/true);
    book.sent(a0, 8, "a");
    book.sent(b0, 0, "b");
    EXPECT_NE(commit(8, {a0, b0}).find("with calls for 'a' and for 'b'"), std::string::npos);
}

TEST_F(TrainerBookTest, APartOfAPublishedVersionThatStandsAloneIsFound) {
    for (const std::string& bytes : {a0, a1, a2}) book.sent(bytes, 0, "a");
    const auto alone = [&](std::uint64_t update, const std::string& bytes) {
        book.took_effect({UpdateId{update}, {bytes}, false, /*stands_alone=*/true}, false);
        return oracle.problem().has_value();
    };
    EXPECT_FALSE(alone(6, a0)) << "nothing was published";
    book.took_effect({UpdateId{7}, {a0}, false}, false);
    book.rolled_back();
    EXPECT_FALSE(alone(8, a1)) << "another version serves";
    book.took_effect({UpdateId{9}, {a1}, false}, false);
    EXPECT_TRUE(alone(10, a2));
}

TEST_F(TrainerBookTest, ACollectionThatLacksARefusedCallIsFound) {
    for (const bool is_of_front_end : {false, true}) {
        Oracle other;
        TrainerBook again(other);
        again.sent(a0, 0);
        again.acknowledged(kNow, a0, 0);
        again.sent(a1, 0);
        if (is_of_front_end) {
            again.refused_by_front_end("a");
        } else {
            again.part_refused(a1);
        }
        again.took_effect({UpdateId{7}, {a0}, false}, false);
        EXPECT_NE(
            other.problem().value_or("").find("a call of a that was refused"), std::string::npos
        );
    }
}

// The refused call named a session that had ended. Its sender learns that from the refusal.
TEST_F(TrainerBookTest, ARefusedCallThatNamesASessionIsNoPartOfACollection) {
    collect(a0);
    book.sent(a1, 4);
    book.part_refused(a1);
    EXPECT_EQ(commit(7, {a0}), "");
}

// On the bus a bucket without a session number belongs to whichever session is open; a collection
// takes it, too.
TEST_F(TrainerBookTest, ABucketForWhicheverSessionIsOfNoSet) {
    collect(a0);
    book.began(kNow, 3, /*takes_unnamed=*/false);
    book.sent_to_whichever(a1);
    book.acknowledged(kNow, a1, 3);
    EXPECT_EQ(commit(3, {a1}), "");
    book.sent_to_whichever(a2);
    EXPECT_NE(commit(4, {a2}).find("without 'ipc://@a-0'"), std::string::npos);
}

TEST_F(TrainerBookTest, ABeginOfCallsThatNameNoneIsBelievedAndNoOther) {
    collect(a0);
    book.began(kNow, 3, /*takes_unnamed=*/false);
    book.sent(a1, 0);
    EXPECT_NE(commit(4, {a1}), "");
    Oracle other;
    TrainerBook again(other);
    again.sent(a0, 0);
    again.acknowledged(kNow, a0, 0);
    again.began(kNow, 3, /*takes_unnamed=*/true);
    again.sent(a1, 0);
    again.took_effect({UpdateId{3}, {a1}, false}, false);
    EXPECT_EQ(other.problem(), std::nullopt);
}

TEST_F(TrainerBookTest, AnAdaptersTrainerIsToldOfLossesOfItsAdapterAlone) {
    const std::string l0 = "ipc://@l-0", l1 = "ipc://@l-1";
    for (const std::string& bytes : {l0, l1}) book.sent(bytes, 0, "", "policy");
    book.acknowledged(kNow, l0, 5);
    book.told_of_loss(kNow);  // of the model's collected calls
    book.began(kNow, 6, /*takes_unnamed=*/true, "critic");
    const auto take_effect = [&](std::uint64_t update) {
        book.took_effect({UpdateId{update}, {l1}, false, true, true}, /*is_mending=*/false);
    };
    take_effect(7);
    ASSERT_NE(oracle.problem(), std::nullopt);
    EXPECT_NE(oracle.problem()->find("without 'ipc://@l-0'"), std::string::npos);
}

// Sessions of an adapter, as their callers and the door tell of them.
class AdapterSessionTest : public testing::Test {
  protected:
    void begin() {
        messages::BeginUpdate call;
        call.unnamed = true;
        call.idle_timeout_ms = 10;
        call.update.adapter = "policy";
        call.update.label = "new";
        book.heard(kNow, call, reply(), {}, "policy");
    }
    void fill(const std::string& adapter) {
        messages::UpdateWeights call;
        call.unnamed = true;
        call.update.adapter = adapter;
        call.update.source.kind = messages::SourceKind::kIpc;
        call.update.source.handles = {{"CPU-0-0", kBytes}};
        book.ordered(kNow, messages::UpdateFill{.update = UpdateId{7}});
        book.heard(kNow, call, reply(), {}, adapter);
    }
    // Commits a version of these weights, and answers with this label.
    void commit(WeightsId weights, const std::string& label) {
        book.ordered(kNow, messages::UpdateFinish{.update = UpdateId{7}});
        book.ordered(kNow, messages::UpdateCommit{UpdateId{7}});
        const AdapterBook::Loaded loaded{.name = "policy", .number = Epoch{7}, .weights = weights};
        EXPECT_EQ(oracle.adapters().committed(messages::AdapterId{7}, loaded), std::nullopt);
        messages::UpdateReply answer = reply();
        answer.session = 0;
        answer.epoch = Epoch{7};
        answer.label = label;
        answer.digest = book.digest_of_weights(weights);
        book.heard(kNow, messages::CommitWeights{.unnamed = true}, answer, {}, "policy");
    }
    static messages::UpdateReply reply() {
        messages::UpdateReply reply;
        reply.ok = true;
        reply.session = 7;
        reply.adapter = "policy";
        return reply;
    }
    [[nodiscard]] std::string problem() const { return oracle.problem().value_or(""); }

    inline static const std::string kBytes = "ipc://@l-0";
    ModelShape shape;
    Oracle oracle;
    SessionBook book{shape, oracle};
};

TEST_F(AdapterSessionTest, WhatWasSentIsCommitted) {
    begin();
    fill("policy");
    commit(with_bytes(WeightsId{}, kBytes), "new");
    EXPECT_EQ(problem(), "");
    EXPECT_EQ(book.num_adapters_committed, 1);
}

TEST_F(AdapterSessionTest, OtherBytesAreFound) {
    begin();
    fill("policy");
    commit(WeightsId{}, "new");
    EXPECT_NE(problem().find("with other bytes than were sent (P2)"), std::string::npos);
}

TEST_F(AdapterSessionTest, AnotherLabelIsFound) {
    begin();
    fill("policy");
    commit(with_bytes(WeightsId{}, kBytes), "old");
    EXPECT_NE(problem().find("is named 'old', not 'new'"), std::string::npos);
}

TEST_F(AdapterSessionTest, ABucketForAnotherAdapterIsFound) {
    begin();
    fill("critic");
    EXPECT_NE(
        problem().find("for adapter 'critic' is in session 7 of 'policy'"), std::string::npos
    );
}

TEST_F(AdapterSessionTest, ALossConcernsTheAdapterAlone) {
    begin();
    fill("policy");
    book.ordered(kNow + seconds(1), messages::UpdateDrop{UpdateId{7}, "the session timed out"});
    EXPECT_EQ(book.num_adapters_expired, 1);
    EXPECT_EQ(book.untold_loss(""), 0u);
    const std::uint64_t loss = book.untold_loss("policy");
    EXPECT_EQ(loss, 7u);
    book.stood_alone("", loss);
    EXPECT_EQ(problem(), "");
    book.stood_alone("policy", loss);
    EXPECT_NE(problem().find("a call after it stands alone"), std::string::npos);
}

TEST_F(AdapterSessionTest, AnIdleSessionThatIsHeldIsFound) {
    begin();
    book.check(kNow + std::chrono::milliseconds(10));
    EXPECT_EQ(problem(), "");
    book.check(kNow + seconds(1));
    EXPECT_NE(problem().find("is held"), std::string::npos);
}

TEST(CollectionBookTest, TheCallForAVersionIsSeenWhenItIsVerified) {
    for (const bool is_asked_for : {true, false}) {
        Oracle oracle;
        CollectionBook book(oracle);
        book.sent("ipc://@a-0");
        messages::UpdateReply reply;
        reply.ok = true;
        reply.state = messages::UpdateState::kCollecting;
        book.heard("ipc://@a-0", reply, CollectionBook::Over::kServing, WeightsId{1});
        book.ordered(messages::UpdateFinish{.update = UpdateId{7}}, is_asked_for, Epoch{1});
        // Another client's pause or continue has come meanwhile.
        book.ordered(messages::UpdateCommit{UpdateId{7}}, !is_asked_for, Epoch{1});
        EXPECT_EQ(oracle.problem().has_value(), !is_asked_for);
    }
}

class FairnessBookTest : public testing::Test {
  protected:
    void arrive(std::uint64_t key, const std::string& client, std::int32_t first_token) {
        messages::TokenizedRequest request;
        request.key = RequestKey{key};
        request.client = {client};
        request.prompt.values = {TokenId{first_token}};
        book.arrived(request);
    }
    void begin(std::vector<std::uint64_t> keys) {
        messages::StepPlan plan;
        for (const std::uint64_t key : keys) plan.setups.push_back({.key = RequestKey{key}});
        book.admitted(plan);
    }

    Oracle oracle;
    FairnessBook book{oracle};
};

TEST_F(FairnessBookTest, ARequestServedOutOfTurnIsFound) {
    arrive(1, "a", 11);
    for (std::uint64_t key = 2; key < 5; ++key) arrive(key, "b", static_cast<std::int32_t>(key));
    begin({2});
    EXPECT_EQ(oracle.problem(), std::nullopt) << "b was first";
    begin({3});
    ASSERT_NE(oracle.problem(), std::nullopt);
    EXPECT_NE(oracle.problem()->find("was overtaken 2 times by client 'b'"), std::string::npos);
}

// Request 2 waits for the prefix that 1 computes, and 3 is behind it, from the same client.
TEST_F(FairnessBookTest, RequestsBehindOneThatWaitsForAPrefixDoNotCountMeanwhile) {
    arrive(1, "c", 20);
    arrive(2, "a", 20);
    arrive(3, "a", 11);
    for (std::uint64_t key = 4; key < 9; ++key) arrive(key, "b", static_cast<std::int32_t>(key));
    begin({1, 4});
    begin({5});
    begin({2});
    EXPECT_EQ(oracle.problem(), std::nullopt);
    begin({6});
    begin({7});
    EXPECT_EQ(oracle.problem(), std::nullopt) << "one was before it";
    begin({8});
    EXPECT_NE(oracle.problem(), std::nullopt);
}

// A diverged version, a token that overflows and one that does not.
class NotFiniteBookTest : public testing::Test {
  protected:
    NotFiniteBookTest() {
        for (std::uint64_t id = 1; bad == TokenId{}; ++id) {
            weights = WeightsId{id};
            for (std::int32_t token = 2; token < kVocab; ++token) {
                const Finite finite = finite_at(TokenId{token}, weights);
                if (finite == Finite::kNothing) bad = TokenId{token};
                if (finite == Finite::kAll) good = TokenId{token};
            }
        }
        request.key = RequestKey{9};
        request.sampling.seed = 1;
        request.sampling.max_new_tokens = 2;
        request.prompt.values = {good, bad, good};
    }
    std::string judge(const std::string& what, const std::string& where, std::int64_t epoch = 4) {
        const auto weights_at = [&](Epoch each) -> std::optional<WeightsId> {
            return each == Epoch{4} ? std::optional(weights) : std::optional(WeightsId{});
        };
        const std::string message = fmt::format(
            "{} was not finite for {}, in step 6 under weight epoch {}", what, where, epoch
        );
        return book.problem_of_error(request, {}, message, weights_at).value_or("");
    }

    WeightsId weights{};
    TokenId bad{};
    TokenId good{};
    messages::TokenizedRequest request{};
    NotFiniteBook book{};
};

TEST_F(NotFiniteBookTest, AnErrorThatNamesTheTokenOfItsPassIsRight) {
    book.met(request.key, {StepId{6}, Epoch{4}, 1, Kind::kState});
    EXPECT_EQ(judge("the hidden state", "prompt token 1"), "");
}

TEST_F(NotFiniteBookTest, AnotherTokenKindEpochOrStepIsFound) {
    EXPECT_NE(judge("the hidden state", "prompt token 1"), "") << "no pass met it";
    book.met(request.key, {StepId{6}, Epoch{4}, 1, Kind::kState});
    EXPECT_NE(judge("the hidden state", "prompt token 0"), "");
    EXPECT_NE(judge("the hidden state", "prompt token 2"), "");
    EXPECT_NE(judge("the hidden state", "output token 1"), "");
    EXPECT_NE(judge("the logits", "prompt token 2"), "") << "nobody wanted them";
    EXPECT_NE(judge("the hidden state", "prompt token 1", 3), "") << "that version is healthy";
    book.begins(request.key);
    book.met(request.key, {StepId{5}, Epoch{4}, 1, Kind::kState});
    EXPECT_NE(judge("the hidden state", "prompt token 1"), "") << "that was another step";
}

// The KV that a request tolerates may belong to another version, which the message does not name.
TEST_F(NotFiniteBookTest, KvOfAVersionBeforeCountsWhereItIsTolerated) {
    const std::string where = "prompt token 1";
    book.met(request.key, {StepId{6}, Epoch{3}, 1, Kind::kState, /*is_lent=*/true});
    const auto judge_lent = [&] {
        const std::string message = fmt::format(
            "the hidden state was not finite at or before {}, in step 6 under weight epoch 3", where
        );
        const auto weights_at = [](Epoch) { return std::optional(WeightsId{}); };
        return book.problem_of_error(request, {}, message, weights_at).value_or("");
    };
    EXPECT_NE(judge_lent(), "") << "of its own version alone, which is healthy";
    request.kv_tolerance = messages::KvTolerance::kKeep;
    EXPECT_EQ(judge_lent(), "");
    book.begins(request.key);
    book.met(request.key, {StepId{6}, Epoch{3}, 1, Kind::kState});
    EXPECT_NE(judge_lent(), "") << "it began on nobody's pages";
}

TEST_F(NotFiniteBookTest, ARequestThatGoesOnIsFoundAndAScoreOfSuchLogits) {
    EXPECT_EQ(book.problem_of_end(request, 2), std::nullopt);
    book.met(request.key, {StepId{6}, Epoch{4}, 4, Kind::kLogits});
    EXPECT_EQ(book.problem_of_end(request, 2), std::nullopt) << "one pass too many";
    EXPECT_NE(book.problem_of_end(request, 3), std::nullopt);
    EXPECT_EQ(NotFiniteBook::problem_of_score(request, 1, weights), std::nullopt);
    EXPECT_NE(NotFiniteBook::problem_of_score(request, 2, weights), std::nullopt);
    EXPECT_EQ(NotFiniteBook::problem_of_score(request, 2, WeightsId{}), std::nullopt);
}

}  // namespace
}  // namespace pitstop::sim
