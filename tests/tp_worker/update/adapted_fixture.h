// Replicas with the adapters of tests/data/golden (tests/golden/make_adapters.py), on a CPU or, in
// a separate program, on a GPU.
#pragma once

#include "base/isa.h"
#include "tests/gpu_or_skip.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

#if defined(PITSTOP_ON_GPU)
inline constexpr DeviceKind kDevice = DeviceKind::kCuda;
inline constexpr int kRanksMax = 1;  // a process has one GPU
#else
inline constexpr DeviceKind kDevice = DeviceKind::kCpu;
inline constexpr int kRanksMax = 2;
#endif

inline std::string golden_dir(const std::string& name) {
    return source_dir() + "/tests/data/golden/" + name;
}

inline std::string adapter_dir(const std::string& name) {
    const std::size_t slash = name.find('/');
    return golden_dir(name.substr(0, slash)) + "/adapters/" + name.substr(slash + 1);
}

// All adapters, as "MODEL/ADAPTER".
inline std::vector<std::string> adapter_names() {
    std::vector<std::string> names;
    for (const auto& model : std::filesystem::directory_iterator(golden_dir(""))) {
        if (!std::filesystem::is_directory(model.path() / "adapters")) continue;
        for (const auto& adapter : std::filesystem::directory_iterator(model.path() / "adapters"))
            names.push_back(
                model.path().filename().string() + "/" + adapter.path().filename().string()
            );
    }
    std::ranges::sort(names);
    return names;
}

class Adapted : public testing::Test {
  protected:
    void SetUp() override {
        if (kDevice == DeviceKind::kCuda) skip_without_gpu();
    }

    void open(
        const std::string& model,
        int tp,
        Compute compute = Compute::kFp32,
        Determinism determinism = Determinism::kBatchInvariant,
        bool has_graphs = true,
        int ep = 1
    ) {
        ReplicaOptions options;
        options.engine.device = kDevice;
        options.engine.determinism = determinism;
        options.engine.has_graphs = has_graphs;
        options.engine.model_dir = golden_dir(model);
        options.engine.compute = compute;
        options.engine.isa = best_isa();
        options.engine.page_size = 5;
        options.engine.max_total_tokens = 400;
        options.tp = tp;
        options.engine.ep = ep;
        auto replica = TestReplica::make(options);
        if (!replica && replica.error().code == ErrorCode::kUnsupported)
            GTEST_SKIP() << replica.error().message;
        ASSERT_TRUE(replica.has_value()) << replica.error().message;
        replica_ = *std::move(replica);
        for (int rank = 0; rank < tp; ++rank) {
            updaters_.push_back(
                std::make_unique<Updater>(replica_->engine(rank), pace_, fault_point_)
            );
        }
    }
    ~Adapted() override { updaters_.clear(); }

    static messages::UpdateSpec from_disk(const std::string& dir) {
        messages::UpdateSpec spec;
        spec.adapter = "one";
        spec.source.path = dir;
        return spec;
    }

    std::vector<messages::WorkerStaged> stage(
        messages::UpdateSpec spec,
        std::optional<messages::AdapterId> begins_as = std::nullopt,
        bool is_rollback = false
    ) {
        const messages::WorkerStage order{
            .update = messages::UpdateId{++last_update_},
            .spec = std::move(spec),
            .begins_as = begins_as,
            .rollback = is_rollback};
        std::vector<messages::WorkerStaged> votes;
        for (const auto& updater : updaters_) {
            if (auto vote = tp_worker::ask<messages::WorkerStaged>(*updater, order))
                votes.push_back(*std::move(vote));
        }
        return votes;
    }
    messages::AdapterId commit() {
        for (const auto& updater : updaters_) {
            const messages::WorkerCommit order{
                .update = messages::UpdateId{last_update_}, .epoch = Epoch{7}};
            EXPECT_TRUE(tp_worker::ask<messages::WorkerCommitted>(*updater, order));
        }
        return messages::AdapterId{last_update_};
    }
    messages::AdapterId load(const std::string& dir) {
        for (const messages::WorkerStaged& vote : stage(from_disk(dir))) {
            EXPECT_TRUE(vote.outcome.ok) << vote.outcome.problems.front();
            if (!vote.outcome.ok) return {};
        }
        return commit();
    }
    void expect_refused(messages::UpdateSpec spec, ErrorCode code, const std::string& why) {
        expect_votes_no(stage(std::move(spec)), code, why);
    }
    void expect_votes_no(
        const std::vector<messages::WorkerStaged>& votes, ErrorCode code, const std::string& why
    ) {
        ASSERT_EQ(votes.size(), updaters_.size());
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_FALSE(vote.outcome.ok) << why;
            if (vote.outcome.ok) continue;
            EXPECT_EQ(vote.outcome.code, code) << vote.outcome.problems.front();
            EXPECT_NE(vote.outcome.problems.front().find(why), std::string::npos)
                << vote.outcome.problems.front();
        }
        const messages::WorkerDrop drop{.update = messages::UpdateId{last_update_}};
        for (const auto& updater : updaters_)
            EXPECT_TRUE(tp_worker::ask<messages::WorkerDropped>(*updater, drop));
    }

    // Computes a prompt in chunks of this many tokens, and returns its last logits.
    std::vector<float> logits_of(
        const std::vector<TokenId>& prompt, std::optional<messages::AdapterId> adapter
    ) {
        generate(replica_.get(), prompt, 1, adapter);
        std::vector<std::int32_t> rows;
        for (std::size_t i = 0; i < prompt.size(); ++i)
            rows.push_back(static_cast<std::int32_t>(i));
        return replica_->read_logits(rows);
    }

    // Checks that requests of these adapters (null: of the model alone) have the same bits together
    // as alone, where their prompts are cut elsewhere. The first two of them compute other scores.
    void expect_bits_of_each_alone(const std::vector<std::optional<messages::AdapterId>>& adapters
    ) {
        std::vector<TestRequest> together(adapters.size());
        for (std::size_t i = 0; i < adapters.size(); ++i) {
            TestRequest& request = together[i];
            for (std::int32_t t = 0; t < 9; ++t)
                request.tokens.push_back(TokenId{(t * 7 + static_cast<std::int32_t>(i)) % 67});
            request.prompt_len = 9;
            request.sampling = greedy();
            request.logprobs = {.enabled = true, .prompt_start = 1};
            request.slot = static_cast<SlotId>(i);
            request.adapter = adapters[i];
            for (std::int32_t p = 0; p < 4; ++p)
                request.pages.push_back(PageId{static_cast<std::int32_t>(i) * 4 + p});
        }
        std::vector<TestRequest> alone = together;
        for (int step = 0; step < 6; ++step) {
            messages::StepPlan plan;
            std::vector<TestRequest*> rows;
            for (TestRequest& request : together) {
                add_row(&request, std::ssize(request.tokens) - request.num_done, &plan);
                rows.push_back(&request);
            }
            run_step(replica_.get(), std::move(plan), rows);
        }
        for (TestRequest& request : alone) {
            for (const std::int64_t num : {3, 1, 5, 1, 1, 1, 1, 1}) {
                messages::StepPlan plan;
                add_row(&request, num, &plan);
                run_step(replica_.get(), std::move(plan), {&request});
            }
        }
        for (std::size_t i = 0; i < alone.size(); ++i) {
            EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
            EXPECT_EQ(together[i].outputs, alone[i].outputs) << i;
            EXPECT_EQ(together[i].scores, alone[i].scores) << i;
        }
        EXPECT_NE(together[0].scores, together[1].scores) << "an adapter changes something";
    }

    Pace pace_{1.0};
    FaultPoint fault_point_{"none"};
    std::unique_ptr<TestReplica> replica_{};
    std::vector<std::unique_ptr<Updater>> updaters_{};
    std::uint64_t last_update_ = 0;
};

}  // namespace pitstop::tp_worker
