// Compares the engine on a GPU with the reference, with the CPU and with itself. Runs on a GPU
// (skips without one) and, with less work, in the emulated preset on a GPU in software, whose
// memory the host cannot access.
#include "base/isa.h"
#include "kernels/runtime/cuda_device.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/products.h"
#include "tests/gpu_or_skip.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/model/random_checkpoint.h"
#include "tests/tp_worker/test_json.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace pitstop::tp_worker {
namespace {

#if defined(PITSTOP_EMULATED)
constexpr bool kIsEmulated = true;
#else
constexpr bool kIsEmulated = false;
#endif

const Json& reference() {
    static const Json json = load_json("tests/data/models/reference.json");
    return json["models"];
}

// In bf16 the GPU also rounds the outputs of products, so it rounds twice as often as the CPU. The
// rest is a margin for chance.
constexpr double kTimesTheCpus = 4.0;
constexpr double kBf16Floor = 0.01;

class GpuEngine : public testing::Test {
  protected:
    void SetUp() override { skip_without_gpu(); }
    static ReplicaOptions options(DeviceKind device, Compute compute = Compute::kBf16) {
        ReplicaOptions options;
        options.engine.model_dir = model_dir("stories");
        options.engine.device = device;
        options.engine.compute = compute;
        options.engine.isa = best_isa();
        options.engine.page_size = 16;
        options.engine.max_total_tokens = 1600;
        options.engine.num_slots = 7;
        options.engine.tokens_per_step_max = 512;
        return options;
    }
    static std::unique_ptr<TestReplica> open(const ReplicaOptions& options) {
        auto replica = TestReplica::make(options);
        EXPECT_TRUE(replica.has_value()) << replica.error().message;
        return *std::move(replica);
    }
};

// Teacher-forced, as Reference.Bf16FollowsWhereTheReferenceIsSure on the CPU: the same bounds.
TEST_F(GpuEngine, FollowsTheReferenceWhereItIsSure) {
    constexpr double kSureGap = 0.15;
    constexpr double kLogprobError = 0.05;
    const auto replica = open(options(DeviceKind::kCuda));
    double worst = 0.0;
    std::size_t num_entries = 0;
    for (const Json& entry : reference()["stories"]["greedy"]) {
        if (kIsEmulated && ++num_entries > 2) break;
        SCOPED_TRACE(entry["prompt"].get<std::string>());
        std::vector<TokenId> ids = ids_of(entry["ids"]);
        const std::size_t prompt_len = ids.size();
        std::vector<TokenId> continuation = ids_of(entry["continuation"]);
        if (kIsEmulated) continuation.resize(12);
        ids.insert(ids.end(), continuation.begin(), continuation.end());
        generate(replica.get(), ids, 1);
        std::vector<std::int32_t> rows;
        for (std::size_t i = 0; i < continuation.size(); ++i) {
            rows.push_back(static_cast<std::int32_t>(prompt_len - 1 + i));
        }
        const std::vector<float> logits = replica->read_logits(rows);
        const auto V = static_cast<std::size_t>(replica->vocab_len());
        for (std::size_t i = 0; i < continuation.size(); ++i) {
            const std::span row(logits.data() + i * V, V);
            const auto best = std::max_element(row.begin(), row.end()) - row.begin();
            if (entry["gaps"][i].get<double>() > kSureGap) {
                EXPECT_EQ(best, raw(continuation[i])) << "token " << i;
            }
            double sum = 0.0;
            for (const float logit : row) sum += std::exp(static_cast<double>(logit));
            const double logprob =
                static_cast<double>(row[static_cast<std::size_t>(raw(continuation[i]))]) -
                std::log(sum);
            const double error = std::abs(logprob - entry["logprobs"][i].get<double>());
            EXPECT_LE(error, kLogprobError) << "token " << i;
            worst = std::max(worst, error);
        }
    }
    std::printf("largest logprob error %.4f\n", worst);
}

TEST_F(GpuEngine, Fp32GivesExactlyTheGreedyIds) {
    const auto replica = open(options(DeviceKind::kCuda, Compute::kFp32));
    std::size_t num_entries = 0;
    for (const Json& entry : reference()["stories"]["greedy"]) {
        if (kIsEmulated && ++num_entries > 1) break;
        SCOPED_TRACE(entry["prompt"].get<std::string>());
        std::vector<TokenId> expected = ids_of(entry["continuation"]);
        if (kIsEmulated) expected.resize(4);
        EXPECT_EQ(
            generate(
                replica.get(), ids_of(entry["ids"]), static_cast<std::int64_t>(expected.size())
            ),
            expected
        );
    }
}

// Draws, penalties, biases, every logprobs mode, top ids and chosen ids. In fp32 the CPU's and the
// GPU's logits differ so little that the draws are equal.
TEST_F(GpuEngine, SamplesAndReportsWhatTheCpuDoes) {
    const BatchMix mix = kIsEmulated
                             ? BatchMix{.num_requests = 7, .num_output = 2, .prompt_len_max = 6}
                             : BatchMix{};
    const auto on_cpu = run_alone(open(options(DeviceKind::kCpu, Compute::kFp32)).get(), mix);
    const auto on_gpu = run_alone(open(options(DeviceKind::kCuda, Compute::kFp32)).get(), mix);
    const auto expect_near = [](const TestRequest::Numbers& a, const TestRequest::Numbers& b) {
        constexpr float kError = 2e-3f;  // the reference's fp32 logits are within a thousandth
        EXPECT_NEAR(a.logprob, b.logprob, kError);
        ASSERT_EQ(a.top_logprobs.size(), b.top_logprobs.size());
        ASSERT_EQ(a.ids_logprobs.size(), b.ids_logprobs.size());
        const auto expect_number = [](float x, float y) {
            if (std::isinf(x)) {
                EXPECT_EQ(x, y);
            } else {
                EXPECT_NEAR(x, y, kError);
            }
        };
        for (std::size_t i = 0; i < a.top_logprobs.size(); ++i)
            expect_number(a.top_logprobs[i], b.top_logprobs[i]);
        for (std::size_t i = 0; i < a.ids_logprobs.size(); ++i)
            expect_number(a.ids_logprobs[i], b.ids_logprobs[i]);
    };
    for (std::size_t i = 0; i < on_cpu.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "request " << i);
        ASSERT_EQ(on_cpu[i].tokens, on_gpu[i].tokens);
        for (std::size_t k = 0; k < on_cpu[i].outputs.size(); ++k) {
            SCOPED_TRACE(testing::Message() << "output " << k);
            expect_near(on_cpu[i].outputs[k], on_gpu[i].outputs[k]);
        }
        ASSERT_EQ(on_cpu[i].scores.size(), on_gpu[i].scores.size());
        for (const auto& [position, numbers] : on_cpu[i].scores) {
            SCOPED_TRACE(testing::Message() << "position " << position);
            expect_near(numbers, on_gpu[i].scores.at(position));
        }
    }
}

// Every family and odd shapes: biases, windows, rope scaling, tied and untied heads. The error, in
// fp32, of all logits of a prompt of several positions against transformers'.
double golden_error(const std::string& directory, DeviceKind device, Compute compute) {
    ReplicaOptions options;
    options.engine.model_dir = directory;
    options.engine.device = device;
    options.engine.compute = compute;
    options.engine.isa = best_isa();
    options.engine.page_size = 5;
    options.engine.max_total_tokens = 200;
    options.engine.num_slots = 4;
    auto replica = TestReplica::make(options);
    EXPECT_TRUE(replica.has_value()) << replica.error().message;
    const Json prompt = load_json(directory + "/golden.json")["prompts"][1];
    const std::vector<TokenId> ids = ids_of(prompt["ids"]);
    const auto V = static_cast<std::size_t>((*replica)->vocab_len());
    generate(replica->get(), ids, 1);
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back(static_cast<std::int32_t>(i));
    const std::vector<float> logits = (*replica)->read_logits(rows);
    double worst = 0.0;
    for (std::size_t t = 0; t < ids.size(); ++t) {
        const Json& row = prompt["logits"][t];
        const std::size_t step = row.size() == V ? 1 : 8;  // as make_golden.py thins them
        for (std::size_t k = 0; k < row.size(); ++k) {
            const double error =
                std::abs(static_cast<double>(logits[t * V + k * step]) - row[k].get<double>());
            worst = std::max(worst, std::isfinite(error) ? error : 1e30);
        }
    }
    return worst;
}

TEST_F(GpuEngine, GivesTheLogitsOfTransformersForEveryFamily) {
    // The bound of the CPU (golden_test.cpp), and the GPU's exponentials, within 2^-21 of a score's
    // weight.
    constexpr double kFp32Error = 2e-4;
    for (const auto& entry :
         std::filesystem::directory_iterator(source_dir() + "/tests/data/golden")) {
        if (!entry.is_directory()) continue;
        const std::string directory = entry.path().string();
        SCOPED_TRACE(directory);
        EXPECT_LE(golden_error(directory, DeviceKind::kCuda, Compute::kFp32), kFp32Error);
        const double cpu = golden_error(directory, DeviceKind::kCpu, Compute::kBf16);
        EXPECT_LE(
            golden_error(directory, DeviceKind::kCuda, Compute::kBf16),
            kTimesTheCpus * cpu + kBf16Floor
        );
    }
}

// With graphs: steps of decodes, small ones with prompts, and whole prompts.
TEST_F(GpuEngine, GivesTheRoutesOfTransformers) {
    const std::string goldens = source_dir() + "/tests/data/golden/";
    for (const std::string name : {"mixtral", "qwen2_moe_shared", "qwen3_moe_every_other"}) {
        SCOPED_TRACE(name);
        ReplicaOptions options;
        options.engine.model_dir = goldens + name;
        options.engine.device = DeviceKind::kCuda;
        options.engine.compute = Compute::kFp32;
        options.engine.isa = best_isa();
        options.engine.page_size = 5;
        options.engine.max_total_tokens = 200;
        options.engine.num_slots = 4;
        auto replica = TestReplica::make(options);
        ASSERT_TRUE(replica.has_value()) << replica.error().message;
        const Json golden = load_json(goldens + name + "/routes.json")["prompts"].back();
        const std::vector<TokenId> ids = ids_of(golden["ids"]);
        for (const std::int64_t chunk : {1, 3, 20}) {
            TestRequest request{.tokens = ids, .prompt_len = std::ssize(ids)};
            request.sampling = greedy();
            request.wants_routes = true;
            for (std::int32_t i = 0; i < 30; ++i) request.pages.push_back(PageId{i});
            while (request.num_done < std::ssize(ids)) {
                messages::StepPlan plan;
                add_row(&request, std::min(chunk, std::ssize(ids) - request.num_done), &plan);
                run_step(replica->get(), std::move(plan), {&request});
            }
            for (std::size_t t = 0; t < ids.size(); ++t) {
                std::vector<std::uint8_t> expected;
                for (const Json& layer : golden["routes"][t])
                    for (const Json& id : layer) expected.push_back(id.get<std::uint8_t>());
                EXPECT_EQ(request.routes.at(static_cast<std::int64_t>(t)), expected) << t;
            }
        }
    }
}

// An update may overwrite a copy of the weights once the last step on it has its result, even if
// that step's rows have no logits.
TEST_F(GpuEngine, P2_AStepWithoutLogitsIsOverWhenItsResultIsThere) {
    const std::vector<TokenId> prompt{TokenId{5}, TokenId{6}, TokenId{7}, TokenId{8}};
    const auto replica = open(options(DeviceKind::kCuda, Compute::kFp32));
    const std::vector<TokenId> undisturbed = generate(replica.get(), prompt, 3);

    const WeightStore& weights = *replica->root().weights();
    auto* const live = const_cast<std::byte*>(weights.live_data());
    std::vector<std::byte> kept(static_cast<std::size_t>(weights.bytes()));
    kernels::copy_and_wait(kept.data(), live, weights.bytes());
    const auto stream = kernels::DeviceStream::create(kernels::StreamPriority::kBackground);
    ASSERT_TRUE(stream.has_value()) << stream.error().message;

    TestRequest request{.tokens = prompt, .prompt_len = 4, .pages = {PageId{1}}};
    request.sampling = greedy();
    const auto run = [&](std::int64_t num_new) {
        messages::StepPlan plan;
        add_row(&request, num_new, &plan);
        run_step(replica.get(), std::move(plan), {&request});
    };
    run(3);
    kernels::fill_device(live, 0, weights.bytes(), stream->stream());
    stream->wait();
    kernels::copy_and_wait(live, kept.data(), weights.bytes());
    for (int i = 0; i < 3; ++i) run(1);
    EXPECT_EQ(std::vector(request.tokens.begin() + 4, request.tokens.end()), undisturbed);
}

TEST_F(GpuEngine, P8_ReleasedMemoryGoesBackAndComesBackAtTheSameAddress) {
    ReplicaOptions one = options(DeviceKind::kCuda);
    const auto replica = open(one);
    const std::vector<TokenId> prompt{TokenId{5}, TokenId{6}, TokenId{7}};
    const std::vector<TokenId> before = generate(replica.get(), prompt, 3);
    WeightStore& weights = *replica->root().weights();
    Arena& kv = *replica->root().kv_memory();
    const std::byte* const address = weights.live_data();
    const std::int64_t free_bytes = kernels::device_memory_info().free_bytes;

    const Result<std::int64_t> weight_bytes = weights.release(WeightStore::Keep::kYes);
    ASSERT_TRUE(weight_bytes.has_value()) << weight_bytes.error().message;
    const Result<std::int64_t> kv_bytes = kv.release();
    ASSERT_TRUE(kv_bytes.has_value()) << kv_bytes.error().message;
    EXPECT_GE(*weight_bytes, weights.bytes());
    // On a real device the driver and other processes may have allocated memory meanwhile.
    const bool is_alone = kernels::opened_cuda_device().name == "emulated GPU";
    const std::int64_t back = *weight_bytes + *kv_bytes - (is_alone ? 0 : 64 << 20);
    EXPECT_GE(kernels::device_memory_info().free_bytes, free_bytes + back);

    ASSERT_TRUE(weights.resume().has_value());
    ASSERT_TRUE(kv.commit().has_value());
    EXPECT_EQ(weights.live_data(), address);
    EXPECT_EQ(generate(replica.get(), prompt, 3), before);
}

#if defined(PITSTOP_EMULATED)
// Counts the calls that allocate or free memory.
std::int64_t num_memory_calls() {
    std::int64_t num = 0;
    for (const char* function :
         {"cudaMalloc", "cudaFree", "cudaMallocHost", "cudaFreeHost", "cuMemCreate", "cuMemUnmap"})
        num += emulator::num_calls(function);
    return num;
}

// A digest runs at the same time as steps, which an allocation would delay.
TEST_F(GpuEngine, ADigestTakesNoMemory) {
    const auto replica = open(options(DeviceKind::kCuda));
    Engine& engine = replica->root();
    const std::int64_t num_before = num_memory_calls();
    const std::int64_t num_pageable = emulator::num_calls("pageable copy");
    const auto digests = engine.weights()->digest(engine.weights()->live_data(), {});
    ASSERT_TRUE(digests.has_value()) << digests.error().message;
    EXPECT_EQ(num_memory_calls(), num_before);
    EXPECT_EQ(emulator::num_calls("pageable copy"), num_pageable);
    const std::vector<messages::PartDigest> loaded = engine.describe().digests;
    ASSERT_EQ(digests->size(), loaded.size());
    for (std::size_t i = 0; i < loaded.size(); ++i)
        EXPECT_EQ((*digests)[i].lane0, loaded[i].lane0) << loaded[i].name;
}

// The first start measures the choices and saves them to a file; the next start reads the file.
TEST_F(GpuEngine, ChoosesHowItMultipliesBeforeItServes) {
    const test::TempDir directory;
    ReplicaOptions tuned = options(DeviceKind::kCuda);
    tuned.engine.tokens_per_step_max = 32;
    const std::vector<TokenId> prompt{TokenId{5}, TokenId{6}, TokenId{7}};
    const std::vector<TokenId> expected = generate(open(tuned).get(), prompt, 3);
    tuned.engine.tuning_dir = directory.path();
    EXPECT_EQ(generate(open(tuned).get(), prompt, 3), expected);
    const auto num_files = std::distance(
        std::filesystem::directory_iterator(directory.path()), std::filesystem::directory_iterator()
    );
    EXPECT_EQ(num_files, 1);
    const int num_heuristics = emulator::products().num_heuristics;
    EXPECT_GT(num_heuristics, 0);
    open(tuned);
    EXPECT_EQ(emulator::products().num_heuristics, num_heuristics);
}

TEST_F(GpuEngine, P8_WeightsAreKeptByPageLockedMemory) {
    const auto replica = open(options(DeviceKind::kCuda));
    WeightStore& weights = *replica->root().weights();
    const std::int64_t num_pageable = emulator::num_calls("pageable copy");
    const std::int64_t num_copies = emulator::num_calls("copy");
    ASSERT_TRUE(weights.release(WeightStore::Keep::kYes).has_value());
    ASSERT_TRUE(weights.resume().has_value());
    EXPECT_GE(emulator::num_calls("copy"), num_copies + 2 * (weights.bytes() / (4 << 20)));
    EXPECT_EQ(emulator::num_calls("pageable copy"), num_pageable);
}
#endif

TEST_F(GpuEngine, P6_DeterministicResultsDoNotDependOnTheBatch) {
    const BatchMix mix = kIsEmulated
                             ? BatchMix{.num_requests = 3, .num_output = 3, .prompt_len_max = 9}
                             : BatchMix{};
    ReplicaOptions deterministic = options(DeviceKind::kCuda);
    deterministic.engine.determinism = Determinism::kBatchInvariant;
    deterministic.engine.page_size = kIsEmulated ? 4 : 16;
    const std::vector<TestRequest> alone = run_alone(open(deterministic).get(), mix);
    unsigned seed = 1;
    for (const std::int64_t page_size :
         kIsEmulated ? std::vector<std::int64_t>{3} : std::vector<std::int64_t>{1, 7, 16, 64}) {
        SCOPED_TRACE(testing::Message() << "page size " << page_size << ", seed " << seed);
        deterministic.engine.page_size = page_size;
        const auto replica = open(deterministic);
        expect_same(alone, run_mixed(replica.get(), mix, seed++));
        if (!kIsEmulated) expect_same(alone, run_mixed(replica.get(), mix, seed++));
    }
}

// Heads of 64 and 128: the kernels on tensor cores, which the bundled models' heads of 32 do not
// use. Logits of a prompt and of its continuation, given token by token; the CPU's fp32 is the
// truth.
TEST_F(GpuEngine, OnTensorCoresIsAsNearTheTruthAsTheCpu) {
    for (const std::int64_t head_dim : {64, 128}) {
        SCOPED_TRACE(testing::Message() << "head size " << head_dim);
        const test::TempDir directory;
        write_random_checkpoint({.head_dim = head_dim}, directory);
        std::vector<TokenId> tokens;
        for (int i = 0; i < 40; ++i) tokens.push_back(static_cast<TokenId>(i * 47 % 2045));
        const auto logits_of = [&](DeviceKind device, Compute compute) {
            ReplicaOptions options = GpuEngine::options(device, compute);
            options.engine.model_dir = directory.path();
            const auto replica = open(options);
            TestRequest request;
            request.tokens = tokens;
            request.prompt_len = static_cast<std::int64_t>(tokens.size());
            request.sampling = greedy();
            for (std::int32_t page = 0; page < 3; ++page) request.pages.push_back(PageId{page});
            std::vector<float> logits;
            for (const std::int64_t num_new : {37, 1, 1, 1}) {  // prefill, then decode
                messages::StepPlan plan;
                add_row(&request, num_new, &plan);
                replica->run(std::move(plan));
                const std::vector<float> last =
                    replica->read_logits({static_cast<std::int32_t>(num_new - 1)});
                logits.insert(logits.end(), last.begin(), last.end());
            }
            return logits;
        };
        const std::vector<float> truth = logits_of(DeviceKind::kCpu, Compute::kFp32);
        const auto error_of = [&](const std::vector<float>& logits) {
            double worst = 0.0;
            for (std::size_t i = 0; i < truth.size(); ++i) {
                const double error = std::abs(double{logits[i]} - double{truth[i]});
                worst = std::max(worst, std::isfinite(error) ? error : 1e30);
            }
            return worst;
        };
        const double cpu = error_of(logits_of(DeviceKind::kCpu, Compute::kBf16));
        const double gpu = error_of(logits_of(DeviceKind::kCuda, Compute::kBf16));
        EXPECT_LE(gpu, kTimesTheCpus * cpu + kBf16Floor);
        std::printf(
            "head size %d: error %.4f, the CPU's %.4f\n", static_cast<int>(head_dim), gpu, cpu
        );
    }
}

TEST_F(GpuEngine, P6_DeterministicOnTensorCoresDoesNotDependOnTheBatch) {
    const BatchMix mix = kIsEmulated
                             ? BatchMix{.num_requests = 3, .num_output = 3, .prompt_len_max = 30}
                             : BatchMix{};
    const test::TempDir directory;
    write_random_checkpoint({.head_dim = 128}, directory);
    ReplicaOptions deterministic = options(DeviceKind::kCuda);
    deterministic.engine.model_dir = directory.path();
    deterministic.engine.determinism = Determinism::kBatchInvariant;
    deterministic.engine.max_total_tokens = 3200;
    const std::vector<TestRequest> alone = run_alone(open(deterministic).get(), mix);
    for (unsigned seed = 1; seed <= (kIsEmulated ? 1u : 8u); ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        deterministic.engine.page_size = seed % 2 == 0 ? 16 : 5;
        expect_same(alone, run_mixed(open(deterministic).get(), mix, seed));
    }
}

TEST_F(GpuEngine, HasTheDigestsOfTheCpusWeights) {
    const std::vector<messages::PartDigest> expected =
        open(options(DeviceKind::kCpu))->root().describe().digests;
    const std::vector<messages::PartDigest> digests =
        open(options(DeviceKind::kCuda))->root().describe().digests;
    ASSERT_EQ(digests.size(), expected.size());
    for (std::size_t i = 0; i < digests.size(); ++i) {
        EXPECT_EQ(digests[i].name, expected[i].name);
        EXPECT_EQ(digests[i].lane0, expected[i].lane0) << digests[i].name;
        EXPECT_EQ(digests[i].lane1, expected[i].lane1) << digests[i].name;
    }
}

TEST_F(GpuEngine, KvTakesWhatTheFractionLeaves) {
    ReplicaOptions half = options(DeviceKind::kCuda);
    half.engine.max_total_tokens = 0;
    half.engine.mem_fraction = 0.5;
    ReplicaOptions most = half;
    most.engine.mem_fraction = 0.9;
    const std::int64_t free_bytes = kernels::device_memory_info().free_bytes;
    const auto small = open(half)->root().describe();
    const auto large = open(most)->root().describe();
    const double more = static_cast<double>(large.kv_bytes - small.kv_bytes);
    EXPECT_NEAR(more, 0.4 * static_cast<double>(free_bytes), 64e6);  // granularity of arenas
    EXPECT_EQ(large.context_len, 1024);
    EXPECT_NE(large.device, "cpu");
}

TEST_F(GpuEngine, WithoutRoomForKvSaysWhatTakesIt) {
    ReplicaOptions too_small = options(DeviceKind::kCuda);
    too_small.engine.max_total_tokens = 0;
    too_small.engine.mem_fraction = 1e-6;
    const auto replica = TestReplica::make(too_small);
    ASSERT_FALSE(replica.has_value());
    EXPECT_EQ(replica.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(replica.error().message.find("--mem-fraction"), std::string::npos)
        << replica.error().message;
}

}  // namespace
}  // namespace pitstop::tp_worker
