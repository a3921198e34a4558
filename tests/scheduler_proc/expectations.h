// The expected results of a request.
#pragma once

#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <string>

namespace pitstop::scheduler {

inline void expect_all(Rig& rig, RequestKey key, const Ask& ask) {
    SCOPED_TRACE(testing::Message() << "request " << raw(key));
    const Received want = rig.expected(ask);
    const Received& got = rig.of(key);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.logprobs, want.logprobs);
    EXPECT_EQ(got.ranks, want.ranks);
    EXPECT_EQ(got.top_ids, want.top_ids);
    EXPECT_EQ(got.top_logprobs, want.top_logprobs);
    EXPECT_EQ(got.ids_logprobs, want.ids_logprobs);
    EXPECT_EQ(got.prompt, want.prompt);
    ASSERT_TRUE(got.finish);
    EXPECT_EQ(got.finish->reason, want.finish->reason);
    EXPECT_EQ(got.finish->matched_token, want.finish->matched_token);
}

inline std::string error_of(Rig& rig, RequestKey key) {
    const auto& finish = rig.of(key).finish;
    if (!finish || finish->reason != messages::FinishReason::kError) return "";
    return std::string(finish->verdict.code_name());
}

}  // namespace pitstop::scheduler
