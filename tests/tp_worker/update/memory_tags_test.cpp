// Memory that is released and resumed by its tags, on real engines.
#include "tp_worker/update/memory_tags.h"

#include "tests/tp_worker/update/updater_fixture.h"

namespace pitstop::tp_worker {
namespace {

const messages::TagMemory& of_tag(const messages::WorkerMemoryDone& done, messages::MemoryTag tag) {
    return done.tags.at(static_cast<std::size_t>(tag));
}

TEST_F(UpdaterTest, P8_ReleasedMemoryGoesBackAndComesAgainAtTheSameAddress) {
    open(2);
    expect_generates_as("stories");
    const std::byte* const address = replica_->engine(0).weights()->live_data();
    const auto released = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{1},
        .action = messages::MemoryAction::kRelease,
        .tags = {messages::MemoryTag::kWeights, messages::MemoryTag::kKvCache}});
    for (const messages::WorkerMemoryDone& done : released) {
        EXPECT_EQ(done.verdict.code, std::nullopt);
        for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
            EXPECT_EQ(of_tag(done, tag).state, messages::MemoryState::kReleased);
            EXPECT_EQ(of_tag(done, tag).resident_bytes, 0);
            EXPECT_GT(of_tag(done, tag).freed_bytes, 0) << name_of(tag);
        }
        EXPECT_EQ(of_tag(done, messages::MemoryTag::kWeights).host_bytes, 0);
    }
    const auto resumed = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{2},
        .action = messages::MemoryAction::kResume,
        .tags = {messages::MemoryTag::kKvCache, messages::MemoryTag::kWeights}});
    for (const messages::WorkerMemoryDone& done : resumed) {
        for (const messages::MemoryTag tag : messages::kAllMemoryTags)
            EXPECT_EQ(of_tag(done, tag).state, messages::MemoryState::kResident);
    }
    EXPECT_EQ(replica_->engine(0).weights()->live_data(), address);
    EXPECT_FALSE(replica_->engine(0).describe().has_weights);
    // New weights are written in place, because no version needs protection.
    EXPECT_EQ(digest_of_votes(stage(model_dir("bard"))), expected_["bard"]["digest"]);
    commit();
    EXPECT_EQ(replica_->engine(0).weights()->live_data(), address);
    EXPECT_EQ(live_digest(), expected_["bard"]["digest"]);
    expect_generates_as("bard");
}

TEST_F(UpdaterTest, KeptWeightsComeBackBitForBit) {
    open(2);
    const auto released = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{1},
        .action = messages::MemoryAction::kRelease,
        .tags = {messages::MemoryTag::kWeights},
        .keep_weights = true});
    for (const messages::WorkerMemoryDone& done : released) {
        const messages::TagMemory& weights = of_tag(done, messages::MemoryTag::kWeights);
        EXPECT_EQ(weights.resident_bytes, 0);
        EXPECT_GE(weights.host_bytes, weights.freed_bytes);
        EXPECT_EQ(
            of_tag(done, messages::MemoryTag::kKvCache).state, messages::MemoryState::kResident
        );
    }
    const auto resumed = ask<messages::WorkerMemoryDone>(messages::WorkerMemory{
        .call = CallId{2},
        .action = messages::MemoryAction::kResume,
        .tags = {messages::MemoryTag::kWeights}});
    EXPECT_EQ(of_tag(resumed[0], messages::MemoryTag::kWeights).host_bytes, 0);
    EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
    expect_generates_as("stories");
}

TEST_F(UpdaterTest, ATagThatIsInThatStateAlreadyStaysAsItIs) {
    open(1);
    const messages::WorkerMemory order{
        .call = CallId{1},
        .action = messages::MemoryAction::kResume,
        .tags = {messages::MemoryTag::kWeights}};
    EXPECT_EQ(ask<messages::WorkerMemoryDone>(order)[0].verdict.code, std::nullopt);
    EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
}

}  // namespace
}  // namespace pitstop::tp_worker
