// Doors whose admin collects calls without a session into one update.
#pragma once

#include "messages/control.h"
#include "messages/memory.h"
#include "messages/replica_standing.h"
#include "messages/weight_reads.h"
#include "tests/tokenizer_proc/doors_fixture.h"

namespace pitstop::tokenizer {

class CollectedTest : public DoorsTest {
  protected:
    template <class Message>
    void call(Message message, std::uint64_t number) {
        message.call = CallId{number};
        send("admin", message, messages::Door::kAdmin);
    }
    template <class Message>
    Message order() {
        return next_to_replica<Message>(0, ReplicaSocket::kControl);
    }
    template <class Message>
    Message reply() {
        return next_to<Message>("admin", messages::Door::kAdmin);
    }
    void send_tensors(std::uint64_t number, const std::string& label = "") {
        messages::UpdateWeights update;
        update.update.source.kind = messages::SourceKind::kDistributed;
        update.update.source.group = "g";
        update.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
        update.update.partial = true;
        update.update.label = label;
        update.update.kv_policy = kv_policy_;
        call(update, number);
    }
    void answer(
        messages::UpdateOrder order,
        std::int64_t num_missing = 0,
        std::optional<ErrorCode> code = std::nullopt
    ) {
        messages::UpdatePart part;
        part.update = update_;
        part.order = order;
        part.ok = !code;
        part.verdict.code = code;
        part.verdict.message = !code ? "" : "it is broken";
        part.state = messages::UpdateState::kServing;
        part.epoch = Epoch{2};
        part.label = label_;
        part.digest = "d2";
        messages::RankOutcome rank{
            .ok = !code, .phase = messages::UpdatePhase::kStaging, .bytes = 100};
        rank.num_missing = num_missing;
        if (num_missing > 0) rank.missing = {"w.first", "w.second"};
        part.outcome.ranks = {rank};
        from_tree(part);
    }
    void finish(std::string label) {
        label_ = std::move(label);
        EXPECT_EQ(order<messages::UpdateFinish>().label, label_);
        answer(messages::UpdateOrder::kStage);
        order<messages::UpdateReady>();
        answer(messages::UpdateOrder::kReady);
        order<messages::UpdateCommit>();
        answer(messages::UpdateOrder::kCommit);
    }
    void pause(double max_pause_s = 0) {
        call(
            messages::PauseGeneration{
                .mode = messages::PauseMode::kInPlace, .max_pause_s = max_pause_s},
            1
        );
        standing_.is_paused = true;
        from_tree(standing_);
        from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
        ASSERT_TRUE(reply<messages::PauseReply>().ok);
    }
    messages::ContinueReply go_on() {
        standing_.is_paused = false;
        from_tree(standing_);
        from_tree(messages::ContinuePart{
            .call = order<messages::ContinueGeneration>().call, .was_paused = true});
        return reply<messages::ContinueReply>();
    }
    void expire_pause() {
        standing_.is_paused = false;
        ++standing_.pauses_expired;
        from_tree(standing_);
    }
    void release(std::vector<messages::MemoryTag> tags) {
        standing_.released = std::move(tags);
        from_tree(standing_);
    }
    // Collects one call.
    void collect_one(bool is_partial = true, const std::string& label = "step-2") {
        begin_collecting(is_partial, label);
        answer(messages::UpdateOrder::kFill, is_partial ? 0 : 2);
        ASSERT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kCollecting);
    }
    // A call fails on the ranks, so the collection is lost.
    void lose_collection() {
        collect_one();
        send_tensors(11);
        order<messages::UpdateFill>();
        answer(messages::UpdateOrder::kFill, 0, ErrorCode::kInvalidArgument);
        order<messages::UpdateDrop>();
        answer(messages::UpdateOrder::kDrop);
        ASSERT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kInvalidArgument);
    }
    // The end of a pause loses a collection. Another caller's continue is refused because of the
    // loss, and sent again.
    void lose_beside_another(const std::string& label) {
        start();
        pause(5);
        collect_one(true, label);
        expire_pause();
        order<messages::UpdateDrop>();
        answer(messages::UpdateOrder::kDrop);
        pause();
        call(messages::ContinueGeneration{}, 20);
        expect_lost(refusal("admin", messages::Door::kAdmin), 20);
        call(messages::ContinueGeneration{}, 21);
        EXPECT_TRUE(go_on().ok);
    }
    void expect_lost(const messages::ErrorReply& refused, std::uint64_t number) {
        EXPECT_EQ(refused.call, CallId{number});
        EXPECT_EQ(refused.error.code, ErrorCode::kAborted);
        EXPECT_NE(refused.error.message.find("take no effect"), std::string::npos)
            << refused.error.message;
    }
    [[nodiscard]] bool is_anything_ordered() { return has_message_to_replica(0); }
    void begin_collecting(bool is_partial, const std::string& label = "step-2") {
        send_tensors(10, label);
        const messages::UpdateStage stage = order<messages::UpdateStage>();
        update_ = stage.update;
        EXPECT_EQ(stage.spec.partial, is_partial);
        EXPECT_EQ(stage.spec.source.kind, messages::SourceKind::kBuckets);
        answer(messages::UpdateOrder::kOpen, is_partial ? 0 : 3);
        EXPECT_EQ(order<messages::UpdateFill>().bucket, 1);
    }

    messages::ReplicaStanding standing_{};
    messages::UpdateId update_{};
    std::string label_{};
    messages::KvPolicy kv_policy_ = messages::KvPolicy::kKeep;
};

}  // namespace pitstop::tokenizer
