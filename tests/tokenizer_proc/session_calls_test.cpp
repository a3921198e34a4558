// Which calls belong to a session, and which version each call is for.
#include "tokenizer_proc/session_calls.h"

#include <gtest/gtest.h>

namespace pitstop::tokenizer {
namespace {

using Names = SessionCalls::Names;

TEST(SessionCalls, ASessionIsNamedByAllOrMayBeMixed) {
    SessionCalls calls;
    EXPECT_FALSE(calls.are_all_named());
    calls.count(Names::kSession);
    EXPECT_EQ(calls.next_bucket(), 1);
    EXPECT_TRUE(calls.are_all_named());
    EXPECT_FALSE(calls.is_any_nameless());
    calls.count(Names::kAny);
    EXPECT_EQ(calls.next_bucket(), 2);
    EXPECT_TRUE(calls.are_all_named());
    EXPECT_TRUE(calls.is_any_nameless());
    calls.count(Names::kNothing);
    EXPECT_FALSE(calls.are_all_named());
}

TEST(SessionCalls, TheFirstLabelNamesTheVersionAndAnotherIsAnothers) {
    SessionCalls calls;
    calls.open("");
    EXPECT_FALSE(calls.is_of_another_version("t1"));
    EXPECT_TRUE(calls.name("t1"));
    EXPECT_FALSE(calls.name("t1"));
    EXPECT_FALSE(calls.name(""));
    EXPECT_FALSE(calls.is_of_another_version(""));
    EXPECT_TRUE(calls.is_of_another_version("t2"));
    EXPECT_NE(
        calls.mixture("t2", "3 collected calls").message.find("among 3 collected calls"),
        std::string::npos
    );
}

TEST(SessionCalls, ABucketWithoutALabelKeepsTheLastOne) {
    SessionCalls calls;
    calls.open("begun");
    calls.label_bucket("");
    EXPECT_EQ(calls.called_label(), "begun");
    EXPECT_EQ(calls.bucket_label(), "");
    calls.label_bucket("sent");
    calls.label_bucket("");
    EXPECT_EQ(calls.called_label(), "sent");
    EXPECT_EQ(calls.bucket_label(), "sent");
}

TEST(SessionCalls, AfterATakeOverTheRefusalNamesBothSessions) {
    SessionCalls calls;
    calls.begin({.unnamed = true, .holder = "t"});
    EXPECT_FALSE(calls.has_taken_over());
    calls.take_over("session 6", /*may_be_unnamed=*/true);
    EXPECT_TRUE(calls.is_unnamed() && calls.is_unnamed_refused());
    const std::string text = calls.must_be_named(7).message;
    EXPECT_NE(text.find("session 7 took over from session 6"), std::string::npos) << text;
}

}  // namespace
}  // namespace pitstop::tokenizer
