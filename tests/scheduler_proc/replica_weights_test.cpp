// The weights of a replica: which version a rollback may return to, and when nothing may run.
#include "scheduler_proc/replica_weights.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using Old = ReplicaWeights::Old;

TEST(ReplicaWeights, AVersionThatWasWholeIsRetainedUntilTheNextOne) {
    ReplicaWeights weights(Epoch{3}, "a");
    weights.open("digest-3", /*has_weights=*/true);
    weights.serve({.epoch = Epoch{4}, .label = "b", .digest = "digest-4"}, Old::kRetained);
    ASSERT_TRUE(weights.retained());
    EXPECT_EQ(weights.retained()->epoch, Epoch{3});
    EXPECT_EQ(weights.retained()->digest, "digest-3");
    EXPECT_EQ(weights.version().epoch, Epoch{4});
    weights.serve({.epoch = Epoch{5}}, Old::kGone);
    EXPECT_FALSE(weights.retained());
}

TEST(ReplicaWeights, P2_TornWeightsAreNoVersionToReturnTo) {
    ReplicaWeights weights(Epoch{1}, "");
    weights.tear();
    EXPECT_FALSE(weights.are_whole());
    weights.serve({.epoch = Epoch{2}}, Old::kRetained);
    EXPECT_FALSE(weights.retained());
    EXPECT_TRUE(weights.are_whole());
}

// A release of torn weights does not hide that they are torn.
TEST(ReplicaWeights, P2_TornStaysTornWhenTheBytesAreGone) {
    ReplicaWeights weights(Epoch{1}, "");
    weights.lose();
    EXPECT_TRUE(weights.are_awaited());
    weights.tear();
    weights.lose();
    EXPECT_TRUE(weights.are_torn());
}

// The serial tells steps in flight apart.
TEST(ReplicaWeights, EachVersionAndEachNewLabelHasANewSerial) {
    ReplicaWeights weights(Epoch{1}, "a");
    const auto first = weights.version().serial;
    weights.relabel("a");
    EXPECT_EQ(weights.version().serial, first);
    weights.relabel("b");
    EXPECT_EQ(weights.version().serial, first + 1);
    weights.serve({.epoch = Epoch{2}}, Old::kGone);
    EXPECT_EQ(weights.version().serial, first + 2);
}

TEST(ReplicaWeights, AnEpochIsNewerOrRefusedByBothNumbers) {
    const ReplicaWeights weights(Epoch{7}, "");
    EXPECT_FALSE(weights.problem_of(Epoch{8}));
    for (const Epoch old : {Epoch{6}, Epoch{7}}) {
        const auto error = weights.problem_of(old);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code, ErrorCode::kFailedPrecondition);
        EXPECT_NE(error->message.find("serves, 7"), std::string::npos) << error->message;
    }
}

}  // namespace
}  // namespace pitstop::scheduler
