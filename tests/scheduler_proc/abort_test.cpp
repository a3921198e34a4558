// Aborts, by exact key, at every stage.
#include "tests/scheduler_proc/expectations.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

messages::EndRequests abort_of(std::vector<RequestKey> keys, std::string message = "enough") {
    return {
        .keys = std::move(keys),
        .cause = messages::EndCause::kAbort,
        .message = std::move(message)};
}

TEST(Abort, AQueuedRequestEndsWithItsCounts) {
    Rig rig({}, {.running_max = 1});
    rig.send({.prompt = prompt_of(5)});
    const RequestKey queued = rig.send({.prompt = prompt_of(7, 200)});
    rig.turn();
    rig.control(abort_of({queued}));
    rig.turn();
    ASSERT_TRUE(rig.of(queued).finish);
    EXPECT_EQ(rig.of(queued).finish->reason, messages::FinishReason::kAbort);
    EXPECT_EQ(rig.of(queued).finish->verdict.message, "enough");
    EXPECT_TRUE(rig.of(queued).finish->was_waiting);
    EXPECT_EQ(rig.of(queued).counts->prompt_tokens, 7);
    EXPECT_EQ(rig.of(queued).counts->completion_tokens, 0);
    rig.run();
}

TEST(Abort, WhilePrefillingOrDecodingDropsWhatIsInFlight) {
    for (int num_steps = 0; num_steps < 14; ++num_steps) {
        SCOPED_TRACE(num_steps);
        Rig rig({}, {.tokens_per_step_max = 8});
        const Ask ask{.prompt = prompt_of(30), .max_new_tokens = 12};
        const RequestKey key = rig.send(ask);
        const Ask other{.prompt = prompt_of(9, 200), .max_new_tokens = 20};
        const RequestKey stays = rig.send(other);
        rig.turn();
        for (int i = 0; i < num_steps; ++i) rig.step();
        const auto before = rig.of(key).tokens;
        rig.control(abort_of({key}));
        rig.turn();
        ASSERT_TRUE(rig.of(key).finish);
        EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kAbort);
        rig.run();
        EXPECT_EQ(rig.of(key).tokens, before) << "P4: every token so far, and none after";
        const auto want = rig.expected(ask).tokens;
        EXPECT_TRUE(std::equal(before.begin(), before.end(), want.begin()));
        expect_all(rig, stays, other);
        EXPECT_EQ(rig.status().pages_free + rig.status().pages_cached, 64);
    }
}

TEST(Abort, OfARequestThatEndedOrNeverWasIsHarmless) {
    Rig rig;
    const RequestKey key = rig.send({.prompt = prompt_of(5)});
    rig.run();
    rig.control(abort_of({key, RequestKey{0}}));
    rig.run();
    EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kLength);
}

TEST(Abort, ThatOvertakesItsRequestEndsItOnArrival) {
    Rig rig;
    const messages::TokenizedRequest first = rig.make({.prompt = prompt_of(5)});
    const messages::TokenizedRequest second = rig.make({.prompt = prompt_of(5)});
    const messages::TokenizedRequest third = rig.make({.prompt = prompt_of(5)});
    rig.control(abort_of({first.key}));
    rig.control(messages::EndRequests{.keys = {second.key}, .cause = messages::EndCause::kPeerGone}
    );
    rig.turn();
    TurnInput in;
    in.requests = {first, second, third};
    rig.turn(in);
    rig.run();
    ASSERT_TRUE(rig.of(first.key).finish);
    EXPECT_EQ(rig.of(first.key).finish->reason, messages::FinishReason::kAbort);
    EXPECT_EQ(rig.of(second.key).num_chunks, 0) << "nobody is left to answer";
    EXPECT_EQ(rig.of(second.key).num_starts, 0);
    EXPECT_EQ(rig.of(third.key).tokens.size(), 8u);
}

TEST(Abort, AStopTextOrAPeerThatIsGoneEndsARequestWithoutAChunk) {
    Rig rig;
    const RequestKey key = rig.send({.prompt = prompt_of(5), .max_new_tokens = 50});
    const RequestKey young = rig.send({.prompt = prompt_of(5, 300), .max_new_tokens = 50});
    rig.turn();
    rig.control(messages::EndRequests{.keys = {young}, .cause = messages::EndCause::kStopText});
    rig.turn();
    rig.step();
    rig.step();
    const auto num_chunks = rig.of(key).num_chunks;
    EXPECT_GT(num_chunks, 0);
    rig.control(messages::EndRequests{.keys = {key}, .cause = messages::EndCause::kStopText});
    rig.run();
    EXPECT_EQ(rig.of(key).num_chunks, num_chunks);
    EXPECT_EQ(rig.of(key).num_drops, 1) << "the detokenizer knew it";
    EXPECT_EQ(rig.of(young).num_drops, 0) << "it did not know this one";
    EXPECT_EQ(rig.scheduler.num_open(), 0);
}

}  // namespace
}  // namespace pitstop::scheduler
