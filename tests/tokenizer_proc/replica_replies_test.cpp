// One reply to a caller from the answers of all replicas, or of all ranks.
#include "tokenizer_proc/replica_replies.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::tokenizer {
namespace {

messages::MemoryPart part_of(
    int replica, const std::string& refusal, bool was_done = false, std::string note = {}
) {
    messages::MemoryPart part;
    part.replica = ReplicaId{replica};
    part.was_done = was_done;
    part.verdict.message = std::move(note);
    if (!refusal.empty()) part.verdict = Error{ErrorCode::kFailedPrecondition, refusal};
    return part;
}

TEST(ReplicaReplies, WithAnErrorOnlyErrorsAreListedEachWithItsReplica) {
    const messages::MemoryReply reply =
        reply_of({part_of(0, "", false, "took 3 s"), part_of(1, "busy"), part_of(2, "torn")});
    EXPECT_FALSE(reply.ok);
    EXPECT_EQ(reply.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(reply.verdict.message, "replica 1: busy; replica 2: torn");
    EXPECT_EQ(reply.parts.size(), 3u);
}

TEST(ReplicaReplies, WithoutAnErrorNotesAreListed) {
    const messages::MemoryReply reply =
        reply_of({part_of(0, "", false, "took 3 s"), part_of(1, "")});
    EXPECT_TRUE(reply.ok);
    EXPECT_EQ(reply.verdict.message, "replica 0: took 3 s");
}

// A call that failed on one replica can be repeated.
TEST(ReplicaReplies, NothingToDoIsNoErrorWhereAnotherReplicaHasSucceeded) {
    EXPECT_TRUE(reply_of({part_of(0, "released before", true), part_of(1, "")}).ok);
    EXPECT_FALSE(reply_of({part_of(0, "released before", true), part_of(1, "busy")}).ok);
    EXPECT_FALSE(
        reply_of({part_of(0, "released before", true), part_of(1, "released before", true)}).ok
    );
}

messages::AdapterPart unload_part(int replica, std::optional<ErrorCode> code, bool was_lost) {
    messages::AdapterPart part;
    part.replica = ReplicaId{replica};
    part.verdict.code = code;
    part.verdict.message = code ? "no adapter 'a' is loaded" : "";
    part.adapter = {.name = "a", .version = Epoch{3}, .digest = "d3"};
    part.was_lost = was_lost;
    return part;
}

TEST(ReplicaReplies, AnUnloadSucceedsWhereAnotherReplicaGivesALossUp) {
    const auto not_found = ErrorCode::kNotFound;
    const messages::AdapterReply done =
        reply_of({unload_part(0, std::nullopt, false), unload_part(1, not_found, true)});
    EXPECT_TRUE(done.ok);
    EXPECT_EQ(
        done.verdict.message, "replica 1: had lost version 3 with digest d3, and has given it up"
    );
    EXPECT_TRUE(done.parts[1].verdict.is_done());
    const messages::AdapterReply lost =
        reply_of({unload_part(0, not_found, true), unload_part(1, not_found, true)});
    EXPECT_EQ(lost.verdict.code, not_found) << "no replica has unloaded it";
    const messages::AdapterReply absent =
        reply_of({unload_part(0, std::nullopt, false), unload_part(1, not_found, false)});
    EXPECT_FALSE(absent.ok) << "one replica has neither had nor lost it";
    const messages::AdapterReply busy =
        reply_of({unload_part(0, ErrorCode::kUnavailable, false), unload_part(1, not_found, true)});
    EXPECT_FALSE(busy.ok);
}

TEST(ReplicaReplies, ARefusedDigestNamesItsReplica) {
    messages::WorkerDigests refused;
    refused.replica = ReplicaId{1};
    refused.epoch = Epoch{4};
    refused.verdict = Error{ErrorCode::kFailedPrecondition, "the weights are released"};
    const messages::DigestsReply reply = reply_of(std::vector{refused});
    EXPECT_FALSE(reply.ok);
    EXPECT_EQ(reply.epoch, Epoch{4});
    EXPECT_EQ(reply.verdict.message, "replica 1: the weights are released");
}

}  // namespace
}  // namespace pitstop::tokenizer
