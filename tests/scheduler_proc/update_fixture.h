// A replica that is driven through updates as the door would do it.
#pragma once

#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

inline constexpr messages::UpdateId kUpdate{1};
inline constexpr std::uint64_t kNewWeights = 9;

inline messages::UpdateSpec spec_of(messages::UpdateMode mode, messages::KvPolicy policy) {
    messages::UpdateSpec spec;
    spec.source.path = "/models/next";
    spec.mode = mode;
    spec.kv_policy = policy;
    spec.label = "step-2";
    return spec;
}

class UpdateTest : public testing::Test {
  protected:
    void start_requests(int num = 3) {
        for (int i = 0; i < num; ++i) {
            asks.push_back({.prompt = prompt_of(9 + i, 100 + i), .max_new_tokens = 24});
            keys.push_back(rig.send(asks.back()));
        }
        rig.turn();
        for (int i = 0; i < 6; ++i) rig.step();
    }

    void order(Control message) {
        rig.control(std::move(message));
        rig.turn();
    }
    void order_stage(
        messages::UpdateSpec spec, Epoch epoch = Epoch{2}, messages::UpdateId id = kUpdate
    ) {
        order(messages::UpdateStage{.update = id, .spec = std::move(spec), .new_epoch = epoch});
    }
    // Runs steps until the update's answer has come, and returns it.
    messages::UpdatePart answer() {
        for (int i = 0; i < 200; ++i) {
            auto parts = rig.take<messages::UpdatePart>();
            if (!parts.empty()) {
                EXPECT_EQ(parts.size(), 1u);
                return parts[0];
            }
            rig.step();
        }
        ADD_FAILURE() << "no answer";
        return {};
    }
    // A whole update as the door would drive it.
    messages::UpdatePart update(
        messages::UpdateMode mode,
        messages::KvPolicy policy,
        Epoch epoch,
        messages::UpdateId id = kUpdate
    ) {
        if (mode == messages::UpdateMode::kDirect) {
            order(messages::UpdateReady{.update = id, .kv_policy = policy});
            EXPECT_TRUE(answer().ok);
        }
        order_stage(spec_of(mode, policy), epoch, id);
        const messages::UpdatePart prepared = answer();
        EXPECT_TRUE(prepared.ok) << prepared.verdict.message;
        EXPECT_EQ(prepared.order, messages::UpdateOrder::kStage);
        EXPECT_EQ(prepared.epoch, epoch);
        if (mode == messages::UpdateMode::kStaged) {
            order(messages::UpdateReady{.update = id, .kv_policy = policy});
            const messages::UpdatePart ready = answer();
            EXPECT_TRUE(ready.ok);
            EXPECT_EQ(ready.order, messages::UpdateOrder::kReady);
        }
        order(messages::UpdateCommit{.update = id});
        messages::UpdatePart committed = answer();
        EXPECT_EQ(committed.order, messages::UpdateOrder::kCommit);
        return committed;
    }
    // The number of tokens of each epoch, summed over spans.
    static std::map<Epoch, std::int64_t> tokens_by_epoch(const Received& got) {
        std::map<Epoch, std::int64_t> sums;
        for (const messages::Span& span : got.spans) sums[span.epoch] += span.tokens;
        return sums;
    }

    Rig rig{{.tp = 2, .num_pages = 128}};
    std::vector<Ask> asks{};
    std::vector<RequestKey> keys{};
};

// update_test.cpp tests P1, P3 and P4 with every mode and policy. Only the weights' epoch changes
// there, so the output must be that of an undisturbed run.

}  // namespace pitstop::scheduler
