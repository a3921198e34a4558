// Scores of a prompt (its tokens' logprobs) while versions change: all scores of one answer belong
// to the version that its first span names, over that version's KV alone (P3).
#include "tests/scheduler_proc/expectations.h"
#include "tests/scheduler_proc/update_fixture.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

// The prompt takes eleven steps, the last of one token.
constexpr std::int64_t kChunk = 4;
constexpr int kChunks = 11;
constexpr std::int64_t kPromptLen = (kChunks - 1) * kChunk + 1;

class ScoringTest : public UpdateTest {
  protected:
    void open() {
        Rig fresh({.tp = 2, .num_pages = 128, .page_size = 2}, {.tokens_per_step_max = kChunk});
        std::swap(rig, fresh);
        asks.clear();
        keys.clear();
    }
    static Ask scoring(std::int64_t max_new_tokens, std::int64_t start = 0) {
        Ask ask{.prompt = prompt_of(kPromptLen), .max_new_tokens = max_new_tokens};
        ask.logprobs = {
            .enabled = true, .prompt_start = start, .top = 2, .ids = {TokenId{5}, TokenId{7}}};
        return ask;
    }
    // Returns when `num_chunks` chunks of the request are planned, two of them in flight.
    RequestKey begin(const Ask& ask, int num_chunks) {
        const RequestKey key = rig.send(ask);
        rig.turn();
        for (int i = 2; i < num_chunks; ++i) rig.step();
        EXPECT_EQ(rig.scheduler.num_in_flight(), 2u);
        return key;
    }
    RequestKey run(const Ask& ask) {
        const RequestKey key = rig.send(ask);
        rig.run();
        return key;
    }
    // Runs an update with other weights to just before its commit.
    void prepare(messages::KvPolicy policy, Epoch epoch = Epoch{2}) {
        update_id = static_cast<messages::UpdateId>(raw(epoch));
        rig.workers.staged_weights = kNewWeights + static_cast<std::uint64_t>(raw(epoch));
        order_stage(spec_of(messages::UpdateMode::kStaged, policy), epoch, update_id);
        ASSERT_TRUE(answer().ok);
        order(messages::UpdateReady{.update = update_id, .kv_policy = policy});
        ASSERT_TRUE(answer().ok);
    }
    void commit() {
        order(messages::UpdateCommit{.update = update_id});
        committed = answer();
        EXPECT_TRUE(committed.ok);
    }
    // Checks that the current weights computed all of the prompt's scores.
    void expect_of_serving(RequestKey key, const Ask& ask) {
        ASSERT_TRUE(rig.of(key).finish);
        EXPECT_EQ(rig.of(key).prompt, rig.expected(ask).prompt);
        expect_first_span(key, rig.scheduler.version().epoch);
    }
    void expect_first_span(RequestKey key, Epoch epoch) {
        ASSERT_FALSE(rig.of(key).spans.empty());
        const messages::Span& first = rig.of(key).spans.front();
        EXPECT_EQ(first.epoch, epoch);
        EXPECT_EQ(first.kv_min_epoch, epoch);
        EXPECT_EQ(first.kv_max_epoch, epoch);
    }

    messages::UpdateId update_id{};
    messages::UpdatePart committed{};
};

TEST_F(ScoringTest, P3_ACommitBetweenTwoChunksMakesItBeginAnewUnderEveryPolicy) {
    for (const messages::KvPolicy policy :
         {messages::KvPolicy::kKeep, messages::KvPolicy::kRecompute}) {
        for (const std::int64_t start : {0, 1, 17, 40}) {
            for (const std::int64_t num_outputs : {0, 1, 5}) {
                for (int num_chunks = 2; num_chunks < kChunks; ++num_chunks) {
                    SCOPED_TRACE(
                        testing::Message() << name_of(policy) << " from " << start << ", "
                                           << num_outputs << " outputs, chunk " << num_chunks
                    );
                    open();
                    prepare(policy);
                    const Ask ask = scoring(num_outputs, start);
                    const RequestKey key = begin(ask, num_chunks);
                    commit();
                    EXPECT_EQ(committed.outcome.num_kept, 0);
                    EXPECT_EQ(committed.outcome.num_recomputed, 1);
                    rig.run();
                    expect_of_serving(key, ask);
                    expect_all(rig, key, ask);
                    EXPECT_EQ(rig.of(key).counts->retractions, 1);
                }
            }
        }
    }
}

TEST_F(ScoringTest, P3_ARollbackUnderAPauseInPlaceMakesItBeginAnew) {
    open();
    prepare(messages::KvPolicy::kKeep);
    commit();
    const Ask ask = scoring(1);
    const RequestKey key = begin(ask, 5);
    rig.control(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace});
    rig.run();
    ASSERT_EQ(rig.status().num_running, 1);
    update_id = messages::UpdateId{3};
    order(messages::UpdateRollback{.update = update_id, .new_epoch = Epoch{3}});
    ASSERT_TRUE(answer().ok);
    order(messages::UpdateReady{.update = update_id, .kv_policy = messages::KvPolicy::kKeep});
    ASSERT_TRUE(answer().ok);
    commit();
    EXPECT_EQ(rig.status().num_running, 0);
    EXPECT_EQ(rig.status().num_retracted, 1);
    rig.control(messages::ContinueGeneration{});
    rig.run();
    expect_of_serving(key, ask);
    EXPECT_EQ(rig.scheduler.version().epoch, Epoch{3});
}

TEST_F(ScoringTest, P3_AScoringThatManyCommitsCutHasScoresOfTheLast) {
    open();
    prepare(messages::KvPolicy::kKeep);
    const Ask ask = scoring(3);
    const RequestKey key = begin(ask, 4);
    commit();
    for (std::int64_t epoch = 3; epoch <= 6; ++epoch) {
        prepare(messages::KvPolicy::kKeep, Epoch{epoch});
        commit();
    }
    rig.run();
    EXPECT_EQ(rig.of(key).counts->retractions, 5);
    expect_of_serving(key, ask);
    expect_all(rig, key, ask);
}

// The commit waits for the steps in flight, which still belong to the old version.
TEST_F(ScoringTest, P3_AScoringWhoseLastChunkIsInFlightIsTheOldVersions) {
    for (const std::int64_t num_outputs : {0, 1, 5}) {
        SCOPED_TRACE(num_outputs);
        open();
        const Ask ask = scoring(num_outputs);
        const auto want = rig.expected(ask).prompt;
        prepare(messages::KvPolicy::kKeep);
        const RequestKey key = begin(ask, kChunks);
        commit();
        EXPECT_EQ(committed.outcome.num_recomputed, 0);
        rig.run();
        ASSERT_TRUE(rig.of(key).finish);
        EXPECT_EQ(rig.of(key).prompt, want);
        EXPECT_EQ(rig.of(key).counts->retractions, 0);
        expect_first_span(key, Epoch{1});
        if (num_outputs < 5) continue;
        const messages::Span& last = rig.of(key).spans.back();
        EXPECT_EQ(last.epoch, Epoch{2}) << "its output goes on";
        EXPECT_EQ(last.kv_min_epoch, Epoch{1}) << "from its KV";
    }
}

// The request is retracted while its last chunk is in flight. Without output it scores its prompt
// again. With output, the token being sampled counts, and so do the scores.
TEST_F(ScoringTest, P3_AScoringThatIsRetractedWithItsLastChunkInFlight) {
    for (const std::int64_t num_outputs : {0, 5}) {
        SCOPED_TRACE(num_outputs);
        open();
        const Ask ask = scoring(num_outputs);
        const auto old = rig.expected(ask).prompt;
        prepare(messages::KvPolicy::kRecompute);
        const RequestKey key = begin(ask, kChunks);
        commit();
        rig.run();
        EXPECT_EQ(rig.of(key).counts->retractions, 1);
        if (num_outputs == 0) {
            expect_of_serving(key, ask);
        } else {
            EXPECT_EQ(rig.of(key).prompt, old);
            expect_first_span(key, Epoch{1});
            EXPECT_EQ(rig.of(key).spans.back().kv_min_epoch, Epoch{2});
        }
    }
}

TEST_F(ScoringTest, P3_AScoringThatGoesOnWithOutputKeepsItsKv) {
    open();
    const Ask ask = scoring(20);
    const auto want = rig.expected(ask).prompt;
    prepare(messages::KvPolicy::kKeep);
    const RequestKey key = begin(ask, kChunks + 4);
    ASSERT_FALSE(rig.of(key).tokens.empty());
    commit();
    EXPECT_EQ(committed.outcome.num_kept, 1);
    EXPECT_EQ(committed.outcome.num_recomputed, 0);
    rig.run();
    EXPECT_EQ(rig.of(key).prompt, want);
    EXPECT_EQ(rig.of(key).counts->retractions, 0);
    EXPECT_EQ(rig.of(key).spans.back().kv_min_epoch, Epoch{1});
    EXPECT_EQ(rig.of(key).spans.back().epoch, Epoch{2});
}

// A prompt_start at the prompt's end asks for no score.
TEST_F(ScoringTest, ARequestThatScoresNothingGoesOnFromItsKv) {
    open();
    prepare(messages::KvPolicy::kKeep);
    const RequestKey key = begin(scoring(2, kPromptLen), 4);
    commit();
    EXPECT_EQ(committed.outcome.num_kept, 1);
    rig.run();
    EXPECT_TRUE(rig.of(key).prompt->logprobs.empty());
    EXPECT_EQ(rig.of(key).spans.front().kv_min_epoch, Epoch{1});
}

TEST_F(ScoringTest, P9_NoOlderPrefixGoesIntoAScoringWhateverItTolerates) {
    open();
    const Ask plain{.prompt = scoring(0).prompt, .max_new_tokens = 1};
    run(plain);
    prepare(messages::KvPolicy::kKeep);
    commit();
    Ask tolerant = plain;
    tolerant.kv_tolerance = messages::KvTolerance::kKeep;
    const RequestKey taken = run(tolerant);
    ASSERT_GT(rig.of(taken).counts->cached_tokens, 0) << "there is an older prefix to be taken";
    ASSERT_EQ(rig.of(taken).spans.front().kv_min_epoch, Epoch{1});
    for (const messages::KvTolerance tolerance :
         {messages::KvTolerance::kKeep, messages::KvTolerance::kMaxLag}) {
        for (const std::int64_t num_outputs : {0, 3}) {
            SCOPED_TRACE(testing::Message() << name_of(tolerance) << " " << num_outputs);
            Ask ask = scoring(num_outputs, 30);
            ask.kv_tolerance = tolerance;
            ask.kv_max_lag = 5;
            const RequestKey key = run(ask);
            expect_of_serving(key, ask);
            expect_all(rig, key, ask);
            // The first request caches a prefix of this version, which the later ones use.
            const bool is_first = tolerance == messages::KvTolerance::kKeep && num_outputs == 0;
            EXPECT_EQ(rig.of(key).counts->cached_tokens, is_first ? 0 : 28);
        }
    }
}

TEST_F(ScoringTest, P3_ARequestWithoutOutputNamesAllKvThatItRead) {
    open();
    const Ask plain{.prompt = scoring(0).prompt, .max_new_tokens = 0};
    const RequestKey quiet = run(plain);
    ASSERT_EQ(rig.of(quiet).spans.size(), 1u);
    EXPECT_EQ(rig.of(quiet).spans[0].tokens, 0);
    expect_first_span(quiet, Epoch{1});

    prepare(messages::KvPolicy::kKeep);
    Ask other = plain;
    other.prompt = prompt_of(kPromptLen, 500);
    const RequestKey cut = begin(other, 3);
    commit();
    EXPECT_EQ(committed.outcome.num_kept, 1);
    Ask tolerant = plain;
    tolerant.kv_tolerance = messages::KvTolerance::kKeep;
    const RequestKey cached = run(tolerant);
    for (const RequestKey key : {cut, cached}) {
        ASSERT_EQ(rig.of(key).spans.size(), 1u);
        const messages::Span& span = rig.of(key).spans[0];
        EXPECT_EQ(span.epoch, Epoch{2});
        EXPECT_EQ(span.label, "step-2");
        EXPECT_EQ(span.digest, rig.scheduler.version().digest);
        EXPECT_EQ(span.kv_min_epoch, Epoch{1});
        EXPECT_EQ(span.kv_max_epoch, Epoch{2});
        EXPECT_EQ(span.tokens, 0);
    }
}

}  // namespace
}  // namespace pitstop::scheduler
