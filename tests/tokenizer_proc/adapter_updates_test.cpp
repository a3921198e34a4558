// Calls about adapters at the admin door: the names that they may have, and the records of how they
// ended.
#include "tests/tokenizer_proc/admin_fixture.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

class AdapterUpdatesTest : public AdminTest {
  protected:
    static messages::UpdateWeights load(const std::string& adapter) {
        messages::UpdateWeights load;
        load.update.source.path = "/adapters/a";
        load.update.adapter = adapter;
        return load;
    }
    static messages::BeginUpdate session(const std::string& adapter) {
        messages::BeginUpdate begin;
        begin.update.source.kind = messages::SourceKind::kBuckets;
        begin.update.adapter = adapter;
        begin.update.adapter_config = "{}";
        begin.update.label = "step 5";
        return begin;
    }
    // Opens the session, and returns its number.
    std::uint64_t open(const messages::BeginUpdate& begin) {
        call(begin);
        update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kOpen);
        const auto opened = reply<messages::UpdateReply>();
        EXPECT_TRUE(opened.ok) << opened.verdict.message;
        return opened.session;
    }
    messages::UpdateReply finish_load() {
        messages::UpdatePart part{
            .order = messages::UpdateOrder::kStage,
            .ok = true,
            .label = "step 5",
            .digest = "d5",
            .adapter_config_digest = "c5"};
        part.update = order<messages::UpdateStage>(0).update;
        from_tree(part);
        update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
        update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
        return reply<messages::UpdateReply>();
    }
    // The latest record of an adapter.
    messages::UpdateRecord last() {
        const messages::StatusReply now = status();
        EXPECT_FALSE(now.adapter_updates.empty());
        return now.adapter_updates.empty() ? messages::UpdateRecord{} : now.adapter_updates.back();
    }
};

// A request that names "stories" gets the model, and one that names "stories:a" gets the adapter a.
TEST_F(AdapterUpdatesTest, NoAdapterHasANameThatStandsForAnother) {
    start();
    const auto expect_refused = [&](const auto& message, const std::string& name) {
        call(message);
        const messages::ErrorReply refused = refusal("admin", messages::Door::kAdmin);
        EXPECT_EQ(refused.error.code, ErrorCode::kInvalidArgument);
        const std::string& why = refused.error.message;
        EXPECT_NE(why.find("the adapter's name is '" + name + "'"), std::string::npos) << why;
        EXPECT_NE(why.find("accepted is a name that is not the model's"), std::string::npos) << why;
    };
    for (const std::string served : {"stories", "actor", "/models/stories"}) {
        for (const std::string& name : {served, served + ":", served + ":a"}) {
            expect_refused(load(name), name);
            expect_refused(session(name), name);
            expect_refused(messages::StageWeights{.update = load(name).update}, name);
            expect_refused(messages::RollbackWeights{.adapter = name}, name);
            expect_refused(messages::UnloadAdapter{.name = name}, name);
        }
    }
    for (const char* const name : {"stories2", "a:stories", "story", "models/stories"}) {
        call(load(name));
        EXPECT_EQ(order<messages::UpdateStage>(0).spec.adapter, name);
        make(1), say_hello(0);
    }
}

TEST_F(AdapterUpdatesTest, TheAnswerHasTheDigestOfTheConfiguration) {
    start();
    call(load("a"));
    const messages::UpdateReply loaded = finish_load();
    EXPECT_TRUE(loaded.ok) << loaded.verdict.message;
    EXPECT_EQ(loaded.digest, "d5");
    EXPECT_EQ(loaded.config_digest, "c5");
    call(load("a"));
    messages::UpdatePart failed{.order = messages::UpdateOrder::kStage};
    failed.update = order<messages::UpdateStage>(0).update;
    failed.verdict = Error{ErrorCode::kNotFound, "no such directory"};
    from_tree(failed);
    update_part(failed.update, messages::UpdateOrder::kDrop);
    EXPECT_EQ(reply<messages::UpdateReply>().config_digest, "") << "the version is the model's";
}

TEST_F(AdapterUpdatesTest, ALoadIsRecordedWithItsAdapterApartFromTheModelsUpdates) {
    start();
    call(load("a"));
    const messages::UpdateReply loaded = finish_load();
    const messages::StatusReply now = status();
    EXPECT_TRUE(now.updates.empty());
    EXPECT_EQ(now.updates_total, 0);
    EXPECT_EQ(now.adapter_updates_total, 1);
    ASSERT_EQ(now.adapter_updates.size(), 1u);
    const messages::UpdateRecord& record = now.adapter_updates[0];
    EXPECT_EQ(record.adapter, "a");
    EXPECT_EQ(record.epoch, loaded.epoch);
    EXPECT_EQ(record.label, "step 5");
    EXPECT_EQ(record.digest, "d5");
}

TEST_F(AdapterUpdatesTest, ASessionAndTheCallsThatItRefusesNameTheirAdapters) {
    start();
    const std::uint64_t number = open(session("a"));
    const messages::StatusReply now = status();
    ASSERT_TRUE(now.session);
    EXPECT_EQ(now.session->adapter, "a");
    EXPECT_EQ(last().adapter, "a");
    EXPECT_EQ(last().what, "begin_update");
    EXPECT_EQ(last().epoch, Epoch{}) << "no version yet";

    call(load("b"));
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.adapter, "b");
    const std::string of = fmt::format("session {} of adapter 'a' (label 'step 5'", number);
    EXPECT_NE(refused.verdict.message.find(of), std::string::npos) << refused.verdict.message;
    EXPECT_EQ(last().adapter, "b");
    EXPECT_FALSE(last().ok);
    EXPECT_EQ(last().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(last().epoch, Epoch{}) << "the model's is no version of it";

    call(messages::RollbackWeights{.adapter = "c"});
    EXPECT_EQ(reply<messages::UpdateReply>().adapter, "c");
    EXPECT_EQ(last().what, "rollback_weights");
    messages::CommitWeights commit{.session = number};
    commit.kv_policy = messages::KvPolicy::kDrain;
    call(commit);
    EXPECT_EQ(reply<messages::UpdateReply>().adapter, "a") << "its session's";
    EXPECT_EQ(status().adapter_updates_failed_total, 3);
    EXPECT_EQ(status().updates_failed_total, 0);

    call(messages::UpdateWeights{.update = {.source = {.path = "/models/next"}}});
    EXPECT_EQ(reply<messages::UpdateReply>().adapter, "") << "the model's";
    EXPECT_EQ(status().updates_failed_total, 1);
}

TEST_F(AdapterUpdatesTest, ACallOfAnEndedSessionNamesItsAdapter) {
    start();
    const std::uint64_t number = open(session("a"));
    call(messages::DropStage{.session = number});
    update_part(order<messages::UpdateDrop>(0).update, messages::UpdateOrder::kDrop);
    EXPECT_EQ(reply<messages::UpdateReply>().adapter, "a");
    messages::UpdateBucket bucket{.session = number};
    bucket.source.path = "/adapters/a";
    call(bucket);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.adapter, "a");
    EXPECT_NE(refused.verdict.message.find("of adapter 'a'"), std::string::npos)
        << refused.verdict.message;
}

TEST_F(AdapterUpdatesTest, AnUnloadIsRecordedHoweverItEnds) {
    start(2);
    const messages::UnloadAdapter unload{.timeout_ms = 1000, .name = "a"};
    const auto part = [&](int replica, std::optional<ErrorCode> code, bool was_lost = false) {
        messages::AdapterPart answer;
        answer.call = order<messages::UnloadAdapter>(replica).call;
        answer.replica = ReplicaId{replica};
        answer.verdict.code = code;
        answer.adapter = {.name = "a"};
        if (!code || was_lost) answer.adapter.version = Epoch{7};
        answer.was_lost = was_lost;
        from_tree(answer);
    };
    call(unload);
    part(0, std::nullopt), part(1, std::nullopt);
    EXPECT_TRUE(reply<messages::AdapterReply>().ok);
    EXPECT_EQ(last().what, "unload_adapter");
    EXPECT_EQ(last().adapter, "a");
    EXPECT_EQ(last().epoch, Epoch{7});
    EXPECT_TRUE(last().ok);
    call(unload);
    part(0, ErrorCode::kNotFound), part(1, ErrorCode::kNotFound);
    EXPECT_FALSE(reply<messages::AdapterReply>().ok);
    EXPECT_EQ(last().verdict.code, ErrorCode::kNotFound);
    EXPECT_EQ(last().epoch, Epoch{});
    // One replica unloads the adapter, and the other one gives it up as lost.
    call(unload);
    part(0, ErrorCode::kNotFound, /*was_lost=*/true), part(1, std::nullopt);
    EXPECT_TRUE(reply<messages::AdapterReply>().ok);
    EXPECT_TRUE(last().ok);
    EXPECT_EQ(last().epoch, Epoch{7});
    // No replica answers in time.
    call(unload);
    wait(1000ms + kReplicaGrace);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kDeadlineExceeded);
    order<messages::UnloadAdapter>(0), order<messages::UnloadAdapter>(1);
    EXPECT_EQ(last().verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(status().adapter_updates_total, 2);
    EXPECT_EQ(status().adapter_updates_failed_total, 2);
    EXPECT_EQ(status().updates_total + status().updates_failed_total, 0);
}

TEST_F(AdapterUpdatesTest, ACallThatNeverHadItsTurnIsRecordedToo) {
    start();
    open(session("a"));
    call(messages::UnloadAdapter{.name = "b"});
    EXPECT_EQ(reply<messages::AdapterReply>().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(last().adapter, "b") << "refused at once, because a session is open";
    EXPECT_EQ(last().verdict.code, ErrorCode::kFailedPrecondition);
    make(1), say_hello(0);
    call(load("a"));
    messages::UpdateWeights waits = load("c");
    waits.timeout_ms = 1000;
    call(waits, 6);
    wait(1000ms);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kDeadlineExceeded);
    order<messages::UpdateStage>(0);
    EXPECT_EQ(last().adapter, "c");
    EXPECT_EQ(last().what, "update_weights");
    EXPECT_EQ(last().verdict.code, ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace pitstop::tokenizer
