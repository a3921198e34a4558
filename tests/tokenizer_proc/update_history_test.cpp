// The latest calls about weights, as `status` reports them.
#include "tokenizer_proc/update_history.h"

#include <gtest/gtest.h>

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

messages::UpdateReply outcome(int epoch, bool ok) {
    messages::UpdateReply reply;
    reply.ok = ok;
    reply.epoch = Epoch{epoch};
    return reply;
}

TEST(UpdateHistory, CountsWhatChangesTheServingVersion) {
    UpdateHistory history;
    const TimePoint now = TimePoint{} + 1h;
    history.record(now, messages::UpdateWeights::kType, outcome(1, true));
    history.record(now, messages::StageWeights::kType, outcome(1, true));
    history.record(now, messages::CommitWeights::kType, outcome(2, true));
    history.record(now, messages::RollbackWeights::kType, outcome(2, false));
    messages::UpdateReply collected = outcome(2, true);
    collected.state = messages::UpdateState::kCollecting;
    history.record(now, messages::UpdateWeights::kType, collected);
    messages::StatusReply status;
    history.report(now + 2s, status);
    EXPECT_EQ(status.updates_total, 2);
    EXPECT_EQ(status.updates_failed_total, 1);
    ASSERT_EQ(status.updates.size(), 4U) << "a collected call has no outcome yet";
    EXPECT_EQ(status.updates.back().what, messages::RollbackWeights::kType);
    EXPECT_EQ(status.updates.back().age_s, 2);
}

TEST(UpdateHistory, KeepsTheLatest) {
    UpdateHistory history;
    const int num = static_cast<int>(UpdateHistory::kShown) + 5;
    for (int epoch = 1; epoch <= num; ++epoch)
        history.record(TimePoint{}, messages::UpdateWeights::kType, outcome(epoch, true));
    messages::StatusReply status;
    history.report(TimePoint{}, status);
    EXPECT_EQ(status.updates_total, num);
    ASSERT_EQ(status.updates.size(), UpdateHistory::kShown);
    EXPECT_EQ(status.updates.front().epoch, Epoch{6});
    EXPECT_EQ(status.updates.back().epoch, Epoch{num});
}

TEST(UpdateHistory, LoadsOfAdaptersLeaveTheModelsUpdatesOnRecord) {
    UpdateHistory history;
    history.record(TimePoint{}, messages::UpdateWeights::kType, outcome(1, true));
    history.record(TimePoint{}, messages::UpdateWeights::kType, outcome(1, false));
    const int num = static_cast<int>(UpdateHistory::kShown) + 5;
    for (int version = 1; version <= num; ++version) {
        messages::UpdateReply load = outcome(version, version != 7);
        load.adapter = "a";
        load.label = "step";
        history.record(TimePoint{}, messages::UpdateWeights::kType, load);
    }
    messages::StatusReply status;
    history.report(TimePoint{}, status);
    EXPECT_EQ(status.updates_total, 1);
    EXPECT_EQ(status.updates_failed_total, 1);
    ASSERT_EQ(status.updates.size(), 2u);
    EXPECT_EQ(status.updates[0].adapter, "");
    EXPECT_EQ(status.adapter_updates_total, num - 1);
    EXPECT_EQ(status.adapter_updates_failed_total, 1);
    ASSERT_EQ(status.adapter_updates.size(), UpdateHistory::kShown);
    EXPECT_EQ(status.adapter_updates[0].adapter, "a");
    EXPECT_EQ(status.adapter_updates[0].epoch, Epoch{6});
    EXPECT_EQ(status.adapter_updates[0].label, "step");
    EXPECT_EQ(status.adapter_updates[1].epoch, Epoch{}) << "it failed: the version is the model's";
    EXPECT_EQ(status.adapter_updates[1].label, "");
}

}  // namespace
}  // namespace pitstop::tokenizer
