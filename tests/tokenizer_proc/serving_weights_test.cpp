// Which updates may follow the serving weights, and what a restart must load.
#include "tokenizer_proc/serving_weights.h"

#include <gtest/gtest.h>

namespace pitstop::tokenizer {
namespace {

class ServingWeightsTest : public testing::Test {
  protected:
    ServingWeightsTest() {
        weights_.set_version({.epoch = Epoch{3}, .label = "three", .digest = "d3", .path = "/3"});
    }
    static messages::UpdateSpec partial() {
        messages::UpdateSpec spec;
        spec.partial = true;
        return spec;
    }
    void commit_four(const std::string& called_label = "") {
        weights_.decide({.epoch = Epoch{4}, .label = "four", .digest = "d4"});
        weights_.commit(ServingWeights::Previous::kRetained, called_label);
    }

    ServingWeights weights_{2};
};

TEST_F(ServingWeightsTest, AVersionIsNewerThanTheOneThatServesAndBuildsOnIt) {
    messages::UpdateSpec spec;
    spec.epoch = Epoch{3};
    EXPECT_EQ(weights_.problem_of(spec)->code, ErrorCode::kFailedPrecondition);
    spec.epoch = Epoch{4};
    EXPECT_FALSE(weights_.problem_of(spec));
    spec.base_digest = "d2";
    EXPECT_TRUE(weights_.problem_of(spec));
    spec.base_digest = "d3";
    EXPECT_FALSE(weights_.problem_of(spec));
}

TEST_F(ServingWeightsTest, APartNeedsWeightsOnEveryReplica) {
    EXPECT_FALSE(weights_.problem_of(partial()));
    weights_.set_has_weights(ReplicaId{1}, false);
    weights_.set_has_weights(ReplicaId{2}, false);  // there is no such replica
    EXPECT_TRUE(weights_.must_be_complete());
    EXPECT_TRUE(weights_.problem_of(partial()));
    commit_four();
    EXPECT_FALSE(weights_.problem_of(partial()));
    weights_.tear();
    EXPECT_TRUE(weights_.problem_of(partial()));
}

TEST_F(ServingWeightsTest, AnAdapterNeedsNoVersionOfTheModel) {
    messages::UpdateSpec spec = partial();
    spec.adapter = "a";
    spec.epoch = Epoch{1};
    weights_.tear();
    EXPECT_FALSE(weights_.problem_of(spec));
}

TEST_F(ServingWeightsTest, ARestartLoadsADecidedVersionBeforeItServes) {
    weights_.decide({.epoch = Epoch{4}, .label = "four", .digest = "d4", .path = "/4"});
    EXPECT_EQ(weights_.version().epoch, Epoch{3});
    EXPECT_EQ(weights_.decided().path, "/4");
    weights_.fail_commit();
    EXPECT_EQ(weights_.version(), weights_.decided());
}

TEST_F(ServingWeightsTest, OnlyTheVersionBeforeTheLastCommitIsRetained) {
    EXPECT_TRUE(weights_.problem_of_rollback());
    commit_four();
    EXPECT_FALSE(weights_.problem_of_rollback());
    weights_.decide_rollback(Epoch{5}, "three", "d3");
    EXPECT_EQ(
        weights_.decided(),
        (ServedVersion{.epoch = Epoch{5}, .label = "three", .digest = "d3", .path = "/3"})
    );
    weights_.lose_retained();
    EXPECT_TRUE(weights_.problem_of_rollback());
}

TEST_F(ServingWeightsTest, ALatePartNamesTheLabelOfTheCallsThatWereCommitted) {
    commit_four("t1");
    EXPECT_EQ(weights_.problem_of_late_part("t1")->code, ErrorCode::kAborted);
    EXPECT_FALSE(weights_.problem_of_late_part("t2"));
    weights_.decide({.epoch = Epoch{5}});
    weights_.commit(ServingWeights::Previous::kOverwritten, "");
    EXPECT_FALSE(weights_.problem_of_late_part("t1"));
    EXPECT_TRUE(weights_.problem_of_rollback());
}

}  // namespace
}  // namespace pitstop::tokenizer
