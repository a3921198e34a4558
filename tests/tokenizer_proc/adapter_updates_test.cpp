// Calls about adapters at the admin door.
#include "tests/tokenizer_proc/admin_fixture.h"

namespace pitstop::tokenizer {
namespace {

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

}  // namespace
}  // namespace pitstop::tokenizer
