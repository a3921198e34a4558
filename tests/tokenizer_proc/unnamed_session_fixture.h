// Sessions of trainers whose calls do not name the session.
#pragma once

#include "tests/tokenizer_proc/update_coordinator_fixture.h"

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

using std::chrono::milliseconds;
using std::chrono::seconds;

class UnnamedSessionTest : public UpdateCoordinatorTest {
  protected:
    static messages::BeginUpdate begin_call(std::string holder = "trainer A") {
        messages::BeginUpdate call;
        call.call = CallId{11};
        call.timeout_ms = 60'000;
        call.idle_timeout_ms = 10'000;
        call.unnamed = true;
        call.holder = std::move(holder);
        call.update.source.kind = messages::SourceKind::kBuckets;
        call.update.partial = true;
        return call;
    }
    void begin(const messages::BeginUpdate& call = begin_call()) {
        coordinator_.handle(now_, {"trainer", call.call}, call, out_);
    }
    // Opens a session.
    void open(const messages::BeginUpdate& call = begin_call()) {
        begin(call);
        both_answer(messages::UpdateOrder::kOpen);
        ASSERT_TRUE(last_reply().ok) << last_reply().verdict.message;
    }
    // An update that names no session, of an adapter or (empty) of the model.
    static messages::UpdateWeights call_for(std::string adapter) {
        messages::UpdateWeights call;
        call.call = CallId{12};
        call.timeout_ms = 60'000;
        call.unnamed = true;
        call.update.partial = true;
        call.update.adapter = std::move(adapter);
        call.update.source.kind = messages::SourceKind::kTensors;
        return call;
    }
    bool unnamed_for(std::string adapter) {
        const messages::UpdateWeights call = call_for(std::move(adapter));
        return coordinator_.take_unnamed(now_, {"trainer", call.call}, call, out_);
    }
    // Sends an update that names no session. Returns false if it became an update of its own.
    bool unnamed(std::string label = "") {
        messages::UpdateWeights call = call_for("");
        call.update.label = std::move(label);
        return coordinator_.take_unnamed(now_, {"trainer", call.call}, call, out_);
    }
    void bucket(std::string label = "") {
        ASSERT_TRUE(unnamed(std::move(label)));
        both_answer(messages::UpdateOrder::kFill);
        ASSERT_TRUE(last_reply().ok) << last_reply().verdict.message;
    }
    void named_bucket(std::uint64_t session, std::string label = "") {
        messages::UpdateBucket call;
        call.call = CallId{12};
        call.session = session;
        call.label = std::move(label);
        call.source.kind = messages::SourceKind::kTensors;
        coordinator_.handle(now_, {"trainer", call.call}, call, out_);
    }
    void end(std::uint64_t session = 0) {
        messages::CommitWeights call;
        call.call = CallId{13};
        call.timeout_ms = 60'000;
        call.session = session;
        call.unnamed = session == 0;
        coordinator_.handle(now_, {"trainer", call.call}, call, out_);
    }
    void drop(bool is_unnamed = false, std::uint64_t session = 0) {
        messages::DropStage call;
        call.call = CallId{14};
        call.timeout_ms = 60'000;
        call.unnamed = is_unnamed;
        call.session = session;
        coordinator_.handle(now_, {"somebody", call.call}, call, out_);
    }
    void expire(std::chrono::milliseconds idle = seconds(10)) {
        now_ += idle;
        coordinator_.tick(now_, out_);
        both_answer(messages::UpdateOrder::kDrop);
        ++next_update_;
        ASSERT_FALSE(coordinator_.is_busy());
    }
    void finish_commit() {
        both_answer(messages::UpdateOrder::kStage);
        both_answer(messages::UpdateOrder::kReady);
        both_answer(messages::UpdateOrder::kCommit);
        ++next_update_;
    }
    const messages::UpdateReply& last_reply() const { return out_.replies.back().second; }
    // Checks that the last answer is a refusal with all of these words.
    void expect_refused(std::initializer_list<std::string_view> words) const {
        EXPECT_FALSE(last_reply().ok);
        EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
        for (const std::string_view word : words)
            EXPECT_NE(last_reply().verdict.message.find(word), std::string::npos)
                << word << " is not in: " << last_reply().verdict.message;
    }
};

}  // namespace pitstop::tokenizer
