#include "tp_worker/model/engine_sizes.h"

#include <gtest/gtest.h>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kGib = std::int64_t{1} << 30;

// A model with 128 KiB of KV per token, on a machine of 64 GiB.
KvFacts facts() {
    return {
        .host_bytes = 64 * kGib,
        .share = 0.25,
        .token_bytes = 128 << 10,
        .page_size = 16,
        .num_slots = 256,
        .context = 40960,
    };
}

TEST(KvTokens, AreWhatTheShareOfTheMachineHolds) {
    EXPECT_EQ(default_kv_tokens(facts()), 16 * kGib / (128 << 10));
}

TEST(KvTokens, AreNoMoreThanRequestsFillAsRunAtOnce) {
    KvFacts few = facts();
    few.num_slots = 2;
    EXPECT_EQ(default_kv_tokens(few), 2 * 40960);
}

TEST(KvTokens, AreAGibibytesWorthOnASmallMachineAndForAShortContext) {
    KvFacts small = facts();
    small.host_bytes = kGib;
    EXPECT_EQ(default_kv_tokens(small), kGib / (128 << 10));
    KvFacts unknown = facts();
    unknown.host_bytes = 0;
    EXPECT_EQ(default_kv_tokens(unknown), kGib / (128 << 10));
    KvFacts brief = facts();
    brief.context = 8;
    EXPECT_EQ(default_kv_tokens(brief), kGib / (128 << 10));
}

TEST(KvTokens, AreWholePagesAndOneAtLeast) {
    KvFacts odd = facts();
    odd.page_size = 1000;
    EXPECT_EQ(default_kv_tokens(odd), 131000);
    KvFacts huge = facts();
    huge.token_bytes = 2 * kGib;
    huge.host_bytes = 0;
    EXPECT_EQ(default_kv_tokens(huge), 16);
}

TEST(KvTokens, AreWhatPagesCanNumber) {
    KvFacts tiny = facts();
    tiny.token_bytes = 1;
    tiny.context = kKvTokensMax;
    EXPECT_EQ(default_kv_tokens(tiny), kKvTokensMax / 16 * 16);
}

// Checkpoints and KV share the memory that the states of running requests leave.
TEST(Checkpoints, AreAQuarterOfWhatIsLeftWithinBounds) {
    EXPECT_EQ(default_num_checkpoints(400, 10, 256), 10);
    EXPECT_EQ(default_num_checkpoints(0, 10, 256), 8);
    EXPECT_EQ(default_num_checkpoints(-5, 10, 256), 8);
    EXPECT_EQ(default_num_checkpoints(4'000'000, 10, 3), 8 + 2 * 3);
}

}  // namespace
}  // namespace pitstop::tp_worker
