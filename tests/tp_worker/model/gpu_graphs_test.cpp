// Steps as CUDA graphs give the bits of steps without graphs, with either copy of the weights, and
// no request sees their padding. gpu_small_steps_test.cpp tests steps with prompts. Runs on a GPU
// and, in the emulated preset, on a GPU in software.
#include "base/log.h"
#include "kernels/runtime/device_memory.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/log_lines.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/model/gpu_replica.h"
#include "tp_worker/model/step_graphs.h"
#include "tp_worker/model/step_padding.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

namespace pitstop::tp_worker {
namespace {

class GpuGraphs : public GpuReplica {};

std::int64_t num_launched(TestReplica& replica) { return replica.root().graphs()->num_launched(); }

// Requests with prompts of one to seven tokens, each with pages of its own for `len_max` tokens.
std::vector<TestRequest> requests_of(int num, std::int64_t len_max) {
    std::vector<TestRequest> requests(static_cast<std::size_t>(num));
    std::int32_t next_page = 0;
    for (int i = 0; i < num; ++i) {
        TestRequest& request = requests[static_cast<std::size_t>(i)];
        request.slot = static_cast<SlotId>(i);
        request.sampling = greedy();
        request.logprobs.enabled = true;
        request.prompt_len = 1 + i;
        for (std::int64_t t = 0; t < request.prompt_len; ++t)
            request.tokens.push_back(static_cast<TokenId>(5 + 3 * i + t));
        for (std::int64_t page = 0; page * 4 < len_max; ++page)
            request.pages.push_back(static_cast<PageId>(next_page++));
    }
    return requests;
}

// One token of each request: a step of decodes once the prompts are done.
void decode(TestReplica& replica, std::vector<TestRequest>& requests) {
    messages::StepPlan plan;
    std::vector<TestRequest*> rows;
    for (TestRequest& request : requests) {
        add_row(&request, request.num_done == 0 ? request.prompt_len : 1, &plan);
        rows.push_back(&request);
    }
    run_step(&replica, std::move(plan), rows);
}

// Chunks of prompts, retractions, and decodes of few and of many rows between them.
TEST_F(GpuGraphs, GiveTheBitsOfStepsWithoutThem) {
    for (const Determinism determinism : {Determinism::kFast, Determinism::kBatchInvariant}) {
        const auto with = open(/*has_graphs=*/true, determinism);
        const auto without = open(/*has_graphs=*/false, determinism);
        const BatchMix mix{.num_requests = 5, .num_output = 5, .prompt_len_max = 9};
        expect_same(run_mixed(with.get(), mix, 3), run_mixed(without.get(), mix, 3));
        std::vector<TestRequest> a = requests_of(5, 16);
        std::vector<TestRequest> b = requests_of(5, 16);
        for (int i = 0; i < 6; ++i) {
            decode(*with, a);
            decode(*without, b);
        }
        expect_same(a, b);
        EXPECT_GE(num_launched(*with), 4);
        EXPECT_EQ(num_launched(*without), 0);
    }
}

// Draws and reports are enqueued after a graph, for rows with and without ranks and bans.
TEST_F(GpuGraphs, RanksAndBansAreThoseOfStepsWithoutThem) {
    const auto run = [](TestReplica& replica, bool is_together) {
        std::vector<TestRequest> requests = requests_of(4, 16);
        const auto allowed = [](int i) { return TokenId{300 + i}; };
        for (TestRequest& request : requests) request.logprobs.prompt_start = 1;
        messages::SamplingParams& few = requests[1].sampling;
        for (int i = 0; i < 3; ++i) {
            few.allowed_token_ids.push_back(allowed(i));
            few.bad_tokens.push_back({allowed(i), allowed(i)});
        }
        few.bad_tokens.push_back({allowed(2), allowed(1)});
        requests[2].sampling.temperature = 4.0;
        requests[2].sampling.seed = 9;
        requests[3].logprobs.mode = messages::LogprobsMode::kScaled;
        requests[3].sampling.logit_bias = {{7, 1e300}};
        for (int i = 0; i < 6; ++i) {
            if (is_together) {
                decode(replica, requests);
                continue;
            }
            for (TestRequest& request : requests) {
                messages::StepPlan plan;
                add_row(&request, request.num_done == 0 ? request.prompt_len : 1, &plan);
                run_step(&replica, std::move(plan), {&request});
            }
        }
        return requests;
    };
    const auto with = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    const auto without = open(/*has_graphs=*/false, Determinism::kBatchInvariant);
    const std::vector<TestRequest> requests = run(*with, /*is_together=*/true);
    EXPECT_GE(num_launched(*with), 4);
    expect_same(requests, run(*without, /*is_together=*/true));
    expect_same(requests, run(*with, /*is_together=*/false));
    expect_same(requests, run(*without, /*is_together=*/false));
    std::int32_t largest = 0;
    for (const TestRequest& request : requests) {
        for (const TestRequest::Numbers& output : request.outputs) {
            EXPECT_GE(output.rank, 1);
            largest = std::max(largest, output.rank);
        }
        for (const auto& [position, score] : request.scores) EXPECT_GE(score.rank, 1) << position;
    }
    EXPECT_GT(largest, 10);  // a temperature of 4 and an allow list draw unlikely tokens
    for (std::size_t i = 1; i < requests[1].tokens.size(); ++i) {
        const TokenId token = requests[1].tokens[i];
        if (static_cast<std::int64_t>(i) < requests[1].prompt_len) continue;
        EXPECT_TRUE(raw(token) >= 300 && raw(token) < 303) << raw(token);
        EXPECT_NE(token, requests[1].tokens[i - 1]);
    }
    for (const TestRequest::Numbers& output : requests[3].outputs) EXPECT_EQ(output.rank, 1);
    EXPECT_EQ(requests[3].tokens.back(), TokenId{7});
}

// A graph of the live copy does not read a retired copy.
TEST_F(GpuGraphs, P1_EachCopyOfTheWeightsHasItsOwn) {
    const auto replica = open(/*has_graphs=*/true);
    const auto tokens_of = [&] {
        std::vector<TestRequest> requests = requests_of(3, 16);
        for (int i = 0; i < 5; ++i) decode(*replica, requests);
        std::vector<TokenId> tokens;
        for (const TestRequest& request : requests)
            tokens.insert(tokens.end(), request.tokens.begin(), request.tokens.end());
        return tokens;
    };
    const std::vector<TokenId> first = tokens_of();
    WeightStore& weights = *replica->root().weights();
    Arena& other = weights.target(messages::UpdateMode::kStaged);
    ASSERT_TRUE(other.renew().has_value());
    // With weights of zero every logit is the same, and the first id wins.
    std::vector<std::byte> zeros(static_cast<std::size_t>(weights.bytes()));
    kernels::copy_and_wait(other.data(), zeros.data(), weights.bytes());
    weights.commit(messages::UpdateMode::kStaged);
    const std::int64_t num_before = num_launched(*replica);
    const std::vector<TokenId> second = tokens_of();
    EXPECT_EQ(second.back(), TokenId{0});
    EXPECT_NE(second, first);
    EXPECT_GT(num_launched(*replica), num_before);
    weights.roll_back();
    EXPECT_EQ(tokens_of(), first);
    // graphs of prompts and of decodes, for each copy
    EXPECT_EQ(replica->root().graphs()->num_graphs(), 4);
}

TEST_F(GpuGraphs, P8_AreValidAfterAReleaseAndAResume) {
    const auto replica = open(/*has_graphs=*/true);
    const std::vector<TokenId> prompt{TokenId{5}, TokenId{6}, TokenId{7}};
    const std::vector<TokenId> before = generate(replica.get(), prompt, 5);
    const std::int64_t num_graphs = replica->root().graphs()->num_graphs();
    EXPECT_EQ(num_graphs, 2);  // one of the prompt, one of decodes
    ASSERT_TRUE(replica->root().weights()->release(WeightStore::Keep::kYes).has_value());
    ASSERT_TRUE(replica->root().kv_memory()->release().has_value());
    ASSERT_TRUE(replica->root().weights()->resume().has_value());
    ASSERT_TRUE(replica->root().kv_memory()->commit().has_value());
    const std::int64_t num_before = num_launched(*replica);
    EXPECT_EQ(generate(replica.get(), prompt, 5), before);
    EXPECT_EQ(num_launched(*replica), num_before + 5);
    EXPECT_EQ(replica->root().graphs()->num_graphs(), num_graphs);
}

// Five rows of decodes are padded to eight. With a prompt of six tokens they are eleven tokens,
// padded to 32. Padding writes only to scratch pages, never to the scheduler's.
class GpuPadding : public GpuGraphs, public testing::WithParamInterface<std::tuple<bool, bool>> {};
std::string name_of_padding(const testing::TestParamInfo<std::tuple<bool, bool>>& of) {
    const auto [has_graphs, has_prompt] = of.param;
    return std::string(has_prompt ? "WithAPrompt" : "OfDecodes") + (has_graphs ? "AsGraphs" : "");
}
INSTANTIATE_TEST_SUITE_P(
    Steps, GpuPadding, testing::Combine(testing::Bool(), testing::Bool()), name_of_padding
);

TEST_P(GpuPadding, WritesToScratchPagesAlone) {
    const auto [has_graphs, has_prompt] = GetParam();
    const auto replica = open(has_graphs);
    std::vector<TestRequest> requests = requests_of(6, 16);
    const TestRequest last = requests.back();
    requests.pop_back();
    for (int i = 0; i < 4; ++i) decode(*replica, requests);
    if (has_prompt) {
        requests.push_back(last);
        decode(*replica, requests);
        // Repeats that step, which now has a graph.
        requests.back() = last;
    }
    Arena& kv = *replica->root().kv_memory();
    const auto read = [&] {
        std::vector<std::byte> bytes(static_cast<std::size_t>(kv.bytes()));
        kernels::copy_and_wait(bytes.data(), kv.data(), kv.bytes());
        return bytes;
    };
    // Overwrites the KV: padding writes equal values in every step, so a repeated write would not
    // show.
    const std::vector<std::byte> before(static_cast<std::size_t>(kv.bytes()), std::byte{0x11});
    kernels::copy_and_wait(kv.data(), before.data(), kv.bytes());
    std::vector<std::int32_t> written;  // pages that this step may write to
    for (const TestRequest& request : requests) {
        const std::int64_t num_new = request.num_done == 0 ? request.prompt_len : 1;
        const std::int64_t end = request.num_done + num_new;
        for (std::int64_t page = request.num_done / 4; page * 4 < end; ++page)
            written.push_back(raw(request.pages[static_cast<std::size_t>(page)]));
    }
    const std::int64_t num_before = num_launched(*replica);
    decode(*replica, requests);
    EXPECT_EQ(num_launched(*replica), num_before + (has_graphs ? 1 : 0));
    const std::vector<std::byte> after = read();
    const ModelConfig& config = replica->root().config();
    constexpr std::int64_t kPages = 1600 / 4;
    const std::int64_t num_pages = kPages + num_scratch_pages(4);
    const auto page_bytes =
        static_cast<std::size_t>(2 * config.num_kv_heads * 4 * config.head_dim * 2);
    std::int64_t num_changed = 0;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        for (std::int64_t page = 0; page < num_pages; ++page) {
            const std::size_t at = static_cast<std::size_t>(layer * num_pages + page) * page_bytes;
            if (std::memcmp(&before[at], &after[at], page_bytes) == 0) continue;
            ++num_changed;
            EXPECT_TRUE(page >= kPages || std::ranges::count(written, page) == 1)
                << "page " << page << " of layer " << layer;
        }
    }
    EXPECT_GE(num_changed, config.num_layers * 5);
}

TEST_F(GpuGraphs, NoneIsMadeWithoutRoomForIt) {
    const Result<kernels::DeviceStream> stream =
        kernels::DeviceStream::create(kernels::StreamPriority::kStep);
    ASSERT_TRUE(stream.has_value()) << stream.error().message;
    Result<kernels::DeviceBuffer> buffer = kernels::DeviceBuffer::create(256);
    ASSERT_TRUE(buffer.has_value()) << buffer.error().message;
    for (const std::int64_t bytes_max : {std::int64_t{0}, std::int64_t{1} << 30}) {
        StepGraphs graphs(bytes_max);
        int num_enqueued = 0;
        for (int i = 0; i < 4; ++i) {
            const Result<> ran = graphs.run({.num_rows = 1}, stream->stream(), [&]() -> Result<> {
                ++num_enqueued;
                kernels::fill_device(buffer->data(), 1, 256, stream->stream());
                return Ok{};
            });
            ASSERT_TRUE(ran.has_value()) << ran.error().message;
            while (graphs.wants_one()) ASSERT_TRUE(graphs.make_one(stream->stream()).has_value());
        }
        stream->wait();
        EXPECT_EQ(graphs.num_graphs(), bytes_max == 0 ? 0 : 1);
        EXPECT_EQ(num_enqueued, bytes_max == 0 ? 4 : 2);
#if defined(PITSTOP_EMULATED)
        EXPECT_EQ(graphs.bytes(), bytes_max == 0 ? 0 : 4096);  // a page; a node uses a part of it
#endif
    }
}

#if defined(PITSTOP_EMULATED)  // where each graph uses one page
// Prompts have many shapes, and their steps run first.
TEST_F(GpuGraphs, PromptsLeaveRoomForDecodes) {
    constexpr std::int64_t kPage = 4096;
    constexpr std::int64_t kRoom = 16;  // graphs
    const Result<kernels::DeviceStream> stream =
        kernels::DeviceStream::create(kernels::StreamPriority::kStep);
    ASSERT_TRUE(stream.has_value()) << stream.error().message;
    const Result<kernels::DeviceBuffer> buffer = kernels::DeviceBuffer::create(256);
    ASSERT_TRUE(buffer.has_value()) << buffer.error().message;
    StepGraphs graphs(kRoom * kPage);
    const auto run_all = [&](std::int64_t tokens_per_row, std::int64_t num_shapes) {
        for (std::int64_t rows = 1; rows <= num_shapes; ++rows) {
            const Result<> ran = graphs.run(
                {.num_tokens = tokens_per_row * rows, .num_rows = rows},
                stream->stream(),
                [&]() -> Result<> {
                    kernels::fill_device(buffer->data(), 1, 256, stream->stream());
                    return Ok{};
                }
            );
            ASSERT_TRUE(ran.has_value()) << ran.error().message;
        }
    };
    run_all(/*tokens_per_row=*/32, /*num_shapes=*/2 * kRoom);
    while (graphs.wants_one()) ASSERT_TRUE(graphs.make_one(stream->stream()).has_value());
    EXPECT_EQ(graphs.num_graphs(), kRoom / StepGraphs::kPromptShare);
    run_all(/*tokens_per_row=*/1, kRoom);
    while (graphs.wants_one()) ASSERT_TRUE(graphs.make_one(stream->stream()).has_value());
    EXPECT_EQ(graphs.num_graphs(), kRoom);
    run_all(/*tokens_per_row=*/1, kRoom);
    EXPECT_EQ(graphs.num_launched(), kRoom - kRoom / StepGraphs::kPromptShare);
    stream->wait();
}
#endif

// A version's memory is allocated while graphs are made: a graph is charged at most what its nodes
// can use. Once the graphs have used all their memory, the log says so once.
TEST_F(GpuGraphs, MemoryOfOthersIsChargedToAGraphAsFarAsItsNodesCanUse) {
    const Result<kernels::DeviceStream> stream =
        kernels::DeviceStream::create(kernels::StreamPriority::kStep);
    ASSERT_TRUE(stream.has_value()) << stream.error().message;
    Result<kernels::DeviceBuffer> buffer = kernels::DeviceBuffer::create(256);
    ASSERT_TRUE(buffer.has_value()) << buffer.error().message;
    std::vector<kernels::DeviceBuffer> others;
    const auto enqueue = [&]() -> Result<> {
        std::thread other([&] {
            Result<kernels::DeviceBuffer> taken = kernels::DeviceBuffer::create(16 << 20);
            ASSERT_TRUE(taken.has_value()) << taken.error().message;
            others.push_back(*std::move(taken));
        });
        other.join();
        kernels::fill_device(buffer->data(), 1, 256, stream->stream());
        return Ok{};
    };
    const test::LogLines log;
    StepGraphs graphs(StepGraphs::kNodeBytesMax * 3 / 2);
    for (std::int64_t num_rows = 1; num_rows <= 4; ++num_rows) {
        for (int i = 0; i < 3; ++i) {
            const StepGraphs::Shape decodes{.num_tokens = num_rows, .num_rows = num_rows};
            const Result<> ran = graphs.run(decodes, stream->stream(), enqueue);
            ASSERT_TRUE(ran.has_value()) << ran.error().message;
            while (graphs.wants_one()) ASSERT_TRUE(graphs.make_one(stream->stream()).has_value());
        }
    }
    stream->wait();
    EXPECT_EQ(others.size(), 2u + 2u + 3u + 3u);
    EXPECT_EQ(graphs.num_graphs(), 2);
    EXPECT_EQ(graphs.bytes(), 2 * StepGraphs::kNodeBytesMax);
    EXPECT_EQ(log.num_of("further steps run without graphs"), 1u);
}

#if defined(PITSTOP_EMULATED)
// After one refusal no graph has early starts, after a second one no step is a graph. No step
// fails.
TEST_F(GpuGraphs, AGraphThatCudaRefusesIsMadeWithoutEarlyStartsOrNotAtAll) {
    constexpr int kInvalidValue = 1, kCaptureInvalidated = 901;  // of cudaError_t
    for (const auto& [function, error] :
         {std::pair{"cudaGraphInstantiate", kInvalidValue},
          std::pair{"cudaStreamEndCapture", kCaptureInvalidated}}) {
        for (const int num_refused : {1, 2}) {
            SCOPED_TRACE(testing::Message() << function << " refused " << num_refused << " times");
            const test::LogLines log;
            const auto replica = open(/*has_graphs=*/true);
            for (int number = 1; number <= num_refused; ++number)
                emulator::fail_call(function, number, error);
            std::vector<TestRequest> requests = requests_of(3, 16);
            for (int i = 0; i < 5; ++i) decode(*replica, requests);
            const auto without = open(/*has_graphs=*/false);
            std::vector<TestRequest> expected = requests_of(3, 16);
            for (int i = 0; i < 5; ++i) decode(*without, expected);
            expect_same(requests, expected);
            EXPECT_EQ(log.num_of("graphs are made without early starts"), 1u);
            EXPECT_EQ(log.num_of("further steps run without graphs"), num_refused == 2 ? 1u : 0u);
            EXPECT_EQ(num_launched(*replica) > 0, num_refused == 1);
        }
    }
}

// The numbers of a row of kernels/KERNELS.md: | what | number | ... |.
std::vector<std::int64_t> numbers_of(const std::string& what) {
    std::ifstream file(source_dir() + "/kernels/KERNELS.md");
    std::vector<std::int64_t> numbers;
    for (std::string line; std::getline(file, line);) {
        const std::string begin = "| " + what + " |";
        if (!line.starts_with(begin)) continue;
        std::istringstream cells(line.substr(begin.size()));
        for (std::string cell; std::getline(cells, cell, '|');) numbers.push_back(std::stoll(cell));
    }
    return numbers;
}

// Compares a step of greedy requests with logprobs with the page: launches, launches by layer,
// copies up and down, waits.
void expect_costs(TestReplica& replica, bool has_prompt, const std::string& what) {
    SCOPED_TRACE(what);
    const std::vector<std::int64_t> page = numbers_of(what);
    ASSERT_EQ(page.size(), 4u);
    std::vector<TestRequest> requests = requests_of(5, 16);
    std::vector<TestRequest> others(requests.begin() + 3, requests.end());
    requests.resize(3);
    for (int i = 0; i < 4; ++i) decode(replica, requests);
    if (has_prompt) {
        requests.push_back(others[0]);
        decode(replica, requests);
        requests.push_back(others[1]);
    }
    const auto count = [](std::initializer_list<const char*> functions) {
        std::int64_t num = 0;
        for (const char* function : functions) num += emulator::num_calls(function);
        return num;
    };
    const auto launches = [&] { return count({"kernel", "cublasLtMatmul", "cudaGraphLaunch"}); };
    const auto copies = [&] { return count({"cudaMemcpyAsync"}); };
    const auto waits = [&] { return count({"cudaEventRecord"}); };
    const std::int64_t num_launches = launches();
    const std::int64_t num_copies = copies();
    const std::int64_t num_waits = waits();
    decode(replica, requests);
    const std::int64_t num_layers = replica.root().config().num_layers;
    EXPECT_EQ(launches() - num_launches, page[0] + page[1] * num_layers);
    EXPECT_EQ(copies() - num_copies, page[2]);
    EXPECT_EQ(waits() - num_waits, page[3]);
}

TEST_F(GpuGraphs, AStepCostsTheHostWhatThePageSays) {
    const auto with = open(/*has_graphs=*/true);
    const auto without = open(/*has_graphs=*/false);
    expect_costs(*without, /*has_prompt=*/false, "of decodes, with `--no-graphs`");
    expect_costs(*with, /*has_prompt=*/false, "of decodes, as a graph");
    expect_costs(*without, /*has_prompt=*/true, "small, with a prompt, with `--no-graphs`");
    expect_costs(*with, /*has_prompt=*/true, "small, with a prompt, as a graph");
}

TEST_F(GpuGraphs, AStepBringsUpWhatThePageSays) {
    const std::vector<std::int64_t> from_prompts = numbers_of("each comes from its prompt");
    const std::vector<std::int64_t> on_new_pages = numbers_of("each begins a new page");
    const std::vector<std::int64_t> going_on = numbers_of("all continue");
    ASSERT_TRUE(from_prompts.size() == 1 && on_new_pages.size() == 1 && going_on.size() == 1);
    const auto replica = open(/*has_graphs=*/true);
    std::vector<TestRequest> requests = requests_of(4, 80);
    for (TestRequest& request : requests) {
        request.prompt_len = 58;
        while (std::ssize(request.tokens) < request.prompt_len)
            request.tokens.push_back(request.tokens.back());
        messages::StepPlan plan;
        add_row(&request, request.prompt_len, &plan);
        run_step(replica.get(), std::move(plan), {&request});
    }
    for (std::int64_t i = 0; i < 6; ++i) {
        const bool is_new_page = (requests[0].prompt_len + i) % kPageSize == 0;
        const std::int64_t expected = i == 0        ? from_prompts[0]
                                      : is_new_page ? on_new_pages[0]
                                                    : going_on[0];
        // The plan of a scheduler that has not seen the last step's draws.
        messages::StepPlan plan;
        std::vector<TestRequest*> rows;
        for (TestRequest& request : requests) {
            add_row(&request, 1, &plan);
            plan.rows.back().takes_sampled = true;
            rows.push_back(&request);
        }
        const std::int64_t before = replica->root().bytes_sent();
        run_step(replica.get(), std::move(plan), rows);
        EXPECT_EQ(replica->root().bytes_sent() - before, expected) << "step " << i;
    }
}
#endif

}  // namespace
}  // namespace pitstop::tp_worker
