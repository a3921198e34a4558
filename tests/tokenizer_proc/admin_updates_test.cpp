// The effects of updates' decisions: the order of records, orders and answers.
#include "tokenizer_proc/admin_updates.h"

#include "tests/tokenizer_proc/admin_outbox_reader.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;
using messages::UpdateOrder;

constexpr TimePoint kNow = TimePoint{} + 1h;
constexpr messages::UpdateId kFirst{40};

class AdminUpdatesTest : public testing::Test {
  protected:
    void set_version(bool has_weights = true) {
        messages::SchedulerHello hello{.epoch = Epoch{5}, .label = "base", .digest = "d5"};
        hello.has_weights = has_weights;
        ReplicaHellos hellos(1);
        EXPECT_TRUE(hellos.add(hello));
        updates_.set_version(hellos, "/models/base", lost_);
    }
    AdminUpdates::Events update(
        const std::string& peer, std::string_view what = messages::UpdateWeights::kType
    ) {
        messages::UpdateWeights call{.call = CallId{7}, .timeout_ms = 60'000};
        call.update.source.path = "/models/next";
        call.update.label = "next";
        return updates_.drive(kNow, [&](UpdateCoordinator& coordinator, UpdateOutput& out) {
            coordinator.handle(kNow, {peer, CallId{7}, what}, call, out);
        });
    }
    AdminUpdates::Events answer(UpdateOrder order, std::optional<ErrorCode> code = std::nullopt) {
        messages::UpdatePart part{
            .update = kFirst, .order = order, .ok = !code, .label = "next", .digest = "d6"};
        part.verdict.code = code;
        return updates_.drive(kNow, [&](UpdateCoordinator& coordinator, UpdateOutput& out) {
            coordinator.handle_part(kNow, part, out);
        });
    }
    // The last answer's events.
    AdminUpdates::Events commit(const std::string& peer = "admin") {
        update(peer);
        answer(UpdateOrder::kStage);
        answer(UpdateOrder::kReady);
        return answer(UpdateOrder::kCommit);
    }
    std::vector<Epoch> take_epochs() {
        std::vector<Epoch> epochs;
        for (const ServedVersion& version : updates_.take_serves()) epochs.push_back(version.epoch);
        return epochs;
    }

    std::optional<messages::LostVersion> lost_{};
    AdminOutbox out_{};
    AdminOutboxReader read_{out_};
    AdminUpdates updates_{1, kFirst, out_};
};

// P1: every token names a version that is on record.
TEST_F(AdminUpdatesTest, P1_AVersionIsOnRecordWhenItsCommitIsOrdered) {
    set_version();
    EXPECT_EQ(take_epochs(), std::vector<Epoch>{Epoch{5}});
    update("admin");
    EXPECT_EQ(read_.order<messages::UpdateStage>().update, kFirst);
    answer(UpdateOrder::kStage);
    read_.order<messages::UpdateReady>();
    EXPECT_TRUE(take_epochs().empty()) << "it may yet be dropped";
    answer(UpdateOrder::kReady);
    read_.order<messages::UpdateCommit>();
    EXPECT_EQ(take_epochs(), std::vector<Epoch>{Epoch{6}});
    EXPECT_EQ(updates_.coordinator().version().epoch, Epoch{5}) << "it does not serve yet";
    answer(UpdateOrder::kCommit);
    EXPECT_TRUE(take_epochs().empty()) << "once is enough";
    EXPECT_EQ(read_.answer<messages::UpdateReply>().epoch, Epoch{6});
    updates_.relabel("best");
    EXPECT_EQ(updates_.take_serves().at(0).label, "best");
}

TEST_F(AdminUpdatesTest, ACallWithoutAPeerIsAnsweredInTheEvents) {
    set_version();
    const AdminUpdates::Events events = commit("");
    ASSERT_TRUE(events.own);
    EXPECT_TRUE(events.own->ok);
    EXPECT_EQ(events.own->epoch, Epoch{6});
    read_.order<messages::UpdateStage>();
    read_.order<messages::UpdateReady>();
    read_.order<messages::UpdateCommit>();
    EXPECT_TRUE(read_.is_empty()) << "no peer is answered";
}

TEST_F(AdminUpdatesTest, StatusHasTheLatestUpdatesAndWhatServes) {
    set_version();
    commit();
    messages::StatusReply reply;
    updates_.report(kNow, reply);
    EXPECT_TRUE(reply.is_ready);
    EXPECT_EQ(reply.weights_path, "/models/next");
    ASSERT_EQ(reply.updates.size(), 1u);
    EXPECT_EQ(reply.updates[0].label, "next");
    EXPECT_FALSE(reply.keep);
}

TEST_F(AdminUpdatesTest, ATreeWithoutWeightsIsReadyWithItsFirstCompleteUpdate) {
    lost_ = messages::LostVersion{.label = "step-9"};
    set_version(/*has_weights=*/false);
    messages::StatusReply reply;
    updates_.report(kNow, reply);
    EXPECT_FALSE(reply.is_ready);
    EXPECT_EQ(reply.weights_path, "");
    ASSERT_TRUE(reply.lost);
    EXPECT_EQ(reply.lost->label, "step-9");
    EXPECT_EQ(reply.lost->epoch, Epoch{5});
    commit();
    EXPECT_TRUE(updates_.has_had_weights());
    updates_.report(kNow, reply);
    EXPECT_TRUE(reply.is_ready);
    EXPECT_FALSE(reply.lost);
}

// Each replica reports whether it has weights.
TEST(AdminUpdates, P2_ATreeIsReadyWhenEveryReplicaHasWeights) {
    AdminOutbox out;
    AdminUpdates updates(2, kFirst, out);
    ReplicaHellos hellos(2);
    messages::SchedulerHello hello{.epoch = Epoch{5}, .digest = "d5"};
    hello.has_weights = true;
    ASSERT_TRUE(hellos.add(hello));
    hello.replica = ReplicaId{1};
    hello.has_weights = false;
    ASSERT_TRUE(hellos.add(hello));
    updates.set_version(hellos, "/models/base", std::nullopt);
    EXPECT_FALSE(updates.has_had_weights());
    EXPECT_TRUE(updates.coordinator().must_be_complete()) << "a part changes what is not there";
    updates.set_has_weights(ReplicaId{1}, true);
    EXPECT_FALSE(updates.coordinator().must_be_complete());
}

TEST_F(AdminUpdatesTest, ACommittedVersionIsKeptOnceByTheFirstReplica) {
    set_version();
    updates_.keep_in(kNow, "/kept", 1);
    commit();
    read_.order<messages::UpdateStage>();
    read_.order<messages::UpdateReady>();
    read_.order<messages::UpdateCommit>();
    std::optional<ReplicaId> to;
    const auto keep = read_.order<messages::WorkerKeep>(&to);
    EXPECT_EQ(to, ReplicaId{0});
    EXPECT_EQ(keep.epoch, Epoch{6});
    EXPECT_EQ(keep.step, messages::KeepStep::kBegin);
    updates_.record_kept(kNow, {.call = keep.call, .step = keep.step});
    EXPECT_EQ(read_.order<messages::WorkerKeep>(&to).step, messages::KeepStep::kWrite);
    EXPECT_EQ(to, ReplicaId{0});
    read_.answer<messages::UpdateReply>();
    EXPECT_TRUE(read_.is_empty());
}

TEST_F(AdminUpdatesTest, ABegunSessionIsAnEventAndARefusedOneIsNone) {
    set_version();
    const auto begin = [&] {
        messages::BeginUpdate call{.call = CallId{7}};
        call.update.source.kind = messages::SourceKind::kBuckets;
        return updates_.drive(kNow, [&](UpdateCoordinator& coordinator, UpdateOutput& out) {
            coordinator.handle(kNow, {"admin", call.call, call.kType}, call, out);
        });
    };
    EXPECT_FALSE(begin().has_begun_session) << "the ranks have not opened it";
    EXPECT_TRUE(answer(UpdateOrder::kOpen).has_begun_session);
    EXPECT_FALSE(begin().has_begun_session) << "one is open";
    EXPECT_TRUE(read_.answer<messages::UpdateReply>().ok);
    EXPECT_FALSE(read_.answer<messages::UpdateReply>().ok);
}

}  // namespace
}  // namespace pitstop::tokenizer
