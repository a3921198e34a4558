// Adapters in a GPU's steps: graphs that do not depend on them, and memory that is freed again.
#include "base/time.h"
#include "kernels/runtime/cuda_device.h"
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/update/adapted_fixture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace pitstop::tp_worker {
namespace {

using MaybeAdapter = std::optional<messages::AdapterId>;

class GpuAdapted : public Adapted {
  protected:
    void open_again(const std::string& model, Determinism determinism, bool has_graphs) {
        replica_.reset();
        updaters_.clear();
        last_update_ = 0;
        open(model, 1, Compute::kBf16, determinism, has_graphs);
    }

    // Requests that decode together; request i has adapters[i]. Then the adapters swap their
    // requests, as after an update with adapter_policy keep.
    std::vector<TestRequest> decode(std::vector<MaybeAdapter> adapters) {
        std::vector<TestRequest> requests(adapters.size());
        for (std::size_t i = 0; i < adapters.size(); ++i) {
            TestRequest& request = requests[i];
            request.tokens.assign(i + 1, TokenId{static_cast<std::int32_t>(5 + i)});
            request.prompt_len = std::ssize(request.tokens);
            request.sampling = greedy();
            request.logprobs.enabled = true;
            request.slot = static_cast<SlotId>(i);
            for (std::int32_t p = 0; p < 4; ++p)
                request.pages.push_back(PageId{static_cast<std::int32_t>(i) * 4 + p});
        }
        for (int step = 0; step < 9; ++step) {
            messages::StepPlan plan;
            std::vector<TestRequest*> rows;
            if (step == 5) std::ranges::rotate(adapters, adapters.begin() + 1);
            for (std::size_t i = 0; i < requests.size(); ++i) {
                TestRequest& request = requests[i];
                request.adapter = adapters[i];
                add_row(&request, step == 0 ? request.prompt_len : 1, &plan);
                rows.push_back(&request);
            }
            run_step(replica_.get(), std::move(plan), rows);
        }
        return requests;
    }

    // Both adapters are of the model.
    void expect_bits_of_steps_without_graphs(
        const std::string& model, const std::string& wide, const std::string& narrow
    ) {
        for (const Determinism determinism : {Determinism::kFast, Determinism::kBatchInvariant}) {
            std::vector<std::vector<TestRequest>> outputs;
            for (const bool has_graphs : {true, false}) {
                open_again(model, determinism, has_graphs);
                const messages::AdapterId all = load(adapter_dir(model + "/" + wide));
                const messages::AdapterId some = load(adapter_dir(model + "/" + narrow));
                const std::vector<TestRequest> none = decode({{}, {}, {}, {}});
                outputs.push_back(decode({all, std::nullopt, some, all}));
                const std::int64_t num_launched = replica_->root().graphs()->num_launched();
                outputs.push_back(decode({some, some, std::nullopt, std::nullopt}));
                expect_same(decode({{}, {}, {}, {}}), none);
                EXPECT_EQ(num_launched > 0, has_graphs);
                EXPECT_EQ(replica_->root().graphs()->num_launched() > num_launched + 8, has_graphs);
                EXPECT_NE(outputs.back()[0].outputs, none[0].outputs) << "an adapter changes it";
            }
            expect_same(outputs[0], outputs[2]);
            expect_same(outputs[1], outputs[3]);
        }
    }
};

TEST_F(GpuAdapted, GraphsHaveTheBitsOfStepsWithoutThem) {
    expect_bits_of_steps_without_graphs("qwen3_tied", "all", "bf16");
}

TEST_F(GpuAdapted, GraphsOfAdaptedExpertsHaveTheBitsOfStepsWithoutThem) {
    expect_bits_of_steps_without_graphs("qwen2_moe_shared", "experts_and_gates", "some_experts");
}

TEST_F(GpuAdapted, AnAdapterTakesMemoryOfTheGpuAndGivesItBack) {
    open("qwen3_tied", 1);
    const auto free_bytes = [] { return kernels::device_memory_info().free_bytes; };
    const std::int64_t before = free_bytes();
    const messages::AdapterId adapter = load(adapter_dir("qwen3_tied/all"));
    EXPECT_LT(free_bytes(), before);
    const Adapter* const loaded = replica_->root().adapters().find(adapter);
    ASSERT_NE(loaded, nullptr);
    EXPECT_EQ(before - free_bytes(), loaded->bytes());
    expect_refused(
        from_disk(adapter_dir("qwen3_tied/all") + "/none"), ErrorCode::kNotFound, "none"
    );
    const messages::WorkerForget forget{.adapters = {adapter}};
    ASSERT_TRUE(updaters_[0]->handle_order(encode(forget)));
    // A separate thread frees the memory.
    const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
    while (free_bytes() != before && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(free_bytes(), before);
}

}  // namespace
}  // namespace pitstop::tp_worker
