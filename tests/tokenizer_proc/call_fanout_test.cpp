// The calls that wait for replicas, alone: their numbers, deadlines, and who answers them.
#include "tokenizer_proc/call_fanout.h"

#include "tests/tokenizer_proc/admin_outbox_reader.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kNow = TimePoint{} + 1h;

class CallFanoutTest : public testing::Test {
  protected:
    // Passes the call on under the caller's number, and returns the order.
    messages::FlushCache flush(std::uint64_t number, std::int64_t timeout_ms = 0) {
        const messages::FlushCache call{.call = CallId{number}, .timeout_ms = timeout_ms};
        EXPECT_TRUE(fanout_.pass_on(kNow, "admin", call, call, fanout_.each<messages::FlushPart>())
        );
        return read_.order<messages::FlushCache>();
    }
    static messages::FlushPart part(CallId call, int replica) {
        return {.call = call, .replica = ReplicaId{replica}, .pages_freed = 7};
    }

    AdminOutbox out_{};
    AdminOutboxReader read_{out_};
    CallFanout fanout_{2, out_};
};

TEST_F(CallFanoutTest, CallersNumbersDoNotCollideBehindTheDoor) {
    const messages::FlushCache first = flush(9);
    const messages::FlushCache second = flush(9);
    EXPECT_NE(first.call, second.call);
    EXPECT_FALSE(fanout_.gather(part(second.call, 0)));
    EXPECT_FALSE(fanout_.gather(part(second.call, 0))) << "a copy counts once";
    EXPECT_FALSE(fanout_.gather(part(second.call, 2))) << "no such replica";
    EXPECT_FALSE(fanout_.gather(part(first.call, 1)));
    const auto all = fanout_.gather(part(second.call, 1));
    ASSERT_TRUE(all);
    EXPECT_EQ(all->caller.peer, "admin");
    EXPECT_EQ(all->caller.call, CallId{9});
    ASSERT_EQ(all->parts.size(), 2u);
    EXPECT_EQ(all->parts[1].replica, ReplicaId{1});
    EXPECT_FALSE(fanout_.gather(part(second.call, 1))) << "it has ended";
    EXPECT_TRUE(fanout_.gather(part(first.call, 0)));
    EXPECT_TRUE(read_.is_empty()) << "the caller is answered by whoever has the parts";
}

// P5: a replica gives up before the door does, because the replica knows the cause of the delay.
TEST_F(CallFanoutTest, P5_ALateCallNamesTheReplicasThatAreSilent) {
    const messages::FlushCache order = flush(3, 1500);
    EXPECT_EQ(order.timeout_ms, 1500);
    EXPECT_FALSE(fanout_.gather(part(order.call, 0)));
    const TimePoint deadline = kNow + 1500ms + kReplicaGrace;
    EXPECT_EQ(fanout_.next_deadline(), deadline);
    fanout_.tick(deadline - 1ns);
    EXPECT_TRUE(read_.is_empty());
    fanout_.tick(deadline);
    const auto late = read_.answer<messages::ErrorReply>();
    EXPECT_EQ(late.call, CallId{3});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(
        late.error.message, "flush_cache, phase flush: no answer in time from scheduler_proc[1]"
    );
    EXPECT_FALSE(fanout_.gather(part(order.call, 1))) << "too late";
    EXPECT_EQ(fanout_.next_deadline(), TimePoint::max());
}

TEST_F(CallFanoutTest, ACallWithoutATimeoutGetsTheOneOfItsKind) {
    EXPECT_EQ(
        flush(1).timeout_ms,
        std::chrono::duration_cast<std::chrono::milliseconds>(kControlTimeout).count()
    );
    EXPECT_EQ(fanout_.next_deadline(), kNow + kControlTimeout + kReplicaGrace);
}

TEST_F(CallFanoutTest, TheBoundOfOpenCallsIsARefusal) {
    for (std::size_t i = 0; i < kCallsMax; ++i) flush(i + 1);
    const messages::FlushCache call{.call = CallId{5000}};
    const Result<> refused =
        fanout_.pass_on(kNow, "admin", call, call, fanout_.each<messages::FlushPart>());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_TRUE(read_.is_empty()) << "nothing was ordered";
}

TEST_F(CallFanoutTest, ARankThatCannotDigestDecidesTheAnswer) {
    fanout_.set_tp(2);
    const messages::WeightDigests call{.call = CallId{4}};
    ASSERT_TRUE(fanout_.pass_on(
        kNow, "admin", call, messages::WorkerDigest{}, fanout_.each<messages::WorkerDigests>()
    ));
    const CallId id = read_.order<messages::WorkerDigest>().call;
    messages::WorkerDigests digests{.call = id, .rank = Rank{0}};
    EXPECT_FALSE(fanout_.gather(digests)) << "three ranks are missing";
    digests.rank = Rank{1};
    digests.verdict = Error{ErrorCode::kFailedPrecondition, "the weights are released"};
    const auto refused = fanout_.gather(digests);
    ASSERT_TRUE(refused);
    ASSERT_EQ(refused->parts.size(), 1u);
    EXPECT_EQ(refused->parts[0].verdict.message, "the weights are released");
    EXPECT_FALSE(fanout_.gather(digests)) << "it has ended";
}

TEST_F(CallFanoutTest, ATensorIsReadOnOneReplicaAndAnsweredWithItsLastPiece) {
    const messages::GetWeights call{.call = CallId{6}, .name = "w"};
    ASSERT_TRUE(fanout_.pass_on(
        kNow, "admin", call, messages::WorkerReadTensor{}, TensorRead(1), ReplicaId{0}
    ));
    std::optional<ReplicaId> to;
    messages::WorkerTensor piece{.call = read_.order<messages::WorkerReadTensor>(&to).call};
    EXPECT_EQ(to, ReplicaId{0});
    piece.tensor = {.name = "w", .dtype = "BF16", .shape = {2, 1}};
    piece.num_rows = piece.num_cols = 1;
    piece.data.values = {1, 2};
    fanout_.handle_piece(piece);
    EXPECT_TRUE(read_.is_empty()) << "a row is missing";
    piece.row_begin = 1;
    fanout_.handle_piece(piece);
    EXPECT_EQ(read_.answer<messages::WeightsReply>().call, CallId{6});
    fanout_.handle_piece(piece);
    EXPECT_TRUE(read_.is_empty()) << "it was answered";
}

TEST_F(CallFanoutTest, AnAbortIsAnsweredAfterTheLastChunkOfEachRequestThatItEnds) {
    const AdminCaller caller{"admin", CallId{2}};
    fanout_.wait_for_last_chunks(caller, kNow, {});
    EXPECT_EQ(read_.answer<messages::AbortReply>().call, CallId{2}) << "nothing is to wait for";
    LastChunks chunks{.ending = {{OpenId{1}, ReplicaId{0}}, {OpenId{2}, ReplicaId{1}}}};
    chunks.reply.ok = true;
    fanout_.wait_for_last_chunks(caller, kNow, std::move(chunks));
    fanout_.request_ended(OpenId{3});
    fanout_.request_ended(OpenId{2});
    fanout_.request_ended(OpenId{2});
    EXPECT_TRUE(read_.is_empty());
    fanout_.request_ended(OpenId{1});
    EXPECT_TRUE(read_.answer<messages::AbortReply>().ok);
    EXPECT_TRUE(read_.is_empty());
}

TEST_F(CallFanoutTest, AReleaseMovesMemoryUntilEveryReplicaHasAnswered) {
    EXPECT_FALSE(fanout_.is_memory_moving());
    flush(1);
    EXPECT_FALSE(fanout_.is_memory_moving());
    const messages::ReleaseMemory call{.call = CallId{2}};
    ASSERT_TRUE(fanout_.pass_on(kNow, "admin", call, call, fanout_.each<messages::MemoryPart>()));
    const CallId id = read_.order<messages::ReleaseMemory>().call;
    EXPECT_FALSE(fanout_.gather(messages::MemoryPart{.call = id, .replica = ReplicaId{0}}));
    EXPECT_TRUE(fanout_.is_memory_moving());
    EXPECT_TRUE(fanout_.gather(messages::MemoryPart{.call = id, .replica = ReplicaId{1}}));
    EXPECT_FALSE(fanout_.is_memory_moving());
}

TEST_F(CallFanoutTest, AllAreAnsweredWhenTheTreeEnds) {
    flush(1);
    flush(2);
    fanout_.fail_all({ErrorCode::kUnavailable, "the tree ends"});
    EXPECT_EQ(read_.answer<messages::ErrorReply>().call, CallId{1});
    EXPECT_EQ(read_.answer<messages::ErrorReply>().error.message, "the tree ends");
    EXPECT_EQ(fanout_.next_deadline(), TimePoint::max());
}

}  // namespace
}  // namespace pitstop::tokenizer
