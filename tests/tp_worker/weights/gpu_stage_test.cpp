// A stage in a GPU's memory from host memory or files: large tensors, whose pieces several threads
// send. The CPU's stage of the same bytes is the reference.
#include "base/isa.h"
#include "tests/gpu_or_skip.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/gpu_writer.h"
#include "tp_worker/weights/weight_stage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr int kThreads = 4;

std::vector<std::byte> random_bytes(std::int64_t num, unsigned seed) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(num));
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        const std::uint64_t finite = random() & 0xbfffbfffbfffbfffu;  // as bf16
        std::memcpy(&bytes[i], &finite, sizeof finite);
    }
    return bytes;
}

// Rank 1 of 2: whole tensors, tensors cut by rows and by columns, in separate ranges.
WeightLayout layout() {
    const RankOf rank{.rank = 1, .tp = 2};
    AxisShare apart;
    apart.ranges = {
        {.begin = 2304, .num = 768, .index = 2}, {.begin = 256, .num = 512, .index = 1}};
    apart.num_parts = 4;
    apart.cut_unit = 256;
    WeightSlots slots;
    slots.add({.name = "whole", .shape = {4097, 2048}});
    slots.add(
        {.name = "by_columns", .shape = {1023, 4096}, .split = Split{1, even_share(4096, rank)}}
    );
    slots.add(
        {.name = "by_rows", .shape = {4099, 1024}, .split = Split{0, padded_share(4099, rank)}}
    );
    slots.add({.name = "apart", .shape = {3072, 1536}, .split = Split{0, apart}});
    slots.add({.name = "small", .shape = {512}});
    return *WeightLayout::make(slots);
}

class GpuStage : public testing::Test {
  protected:
    void SetUp() override {
        skip_without_gpu();
        for (const WeightTensor& tensor : layout_.tensors())
            sent_[tensor.name] = random_bytes(tensor.whole_bytes(), ++seed_);
    }

    // A tensor's source: its bytes in memory, or a function that reads them, as for a file.
    enum class From : std::uint8_t { kMemory, kFile };
    [[nodiscard]] TensorBytes bytes_from(From from, const std::string& name) {
        const std::vector<std::byte>& all = sent_.at(name);
        TensorBytes bytes{.data = all.data()};
        if (from == From::kMemory) return bytes;
        bytes.read = [this, &all, &name](std::int64_t begin, std::span<std::byte> out) {
            {
                const std::lock_guard lock(mutex_);
                readers_.insert(std::this_thread::get_id());
            }
            // Lets other threads read their tensors meanwhile.
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            const auto from_byte = static_cast<std::size_t>(begin);
            if (name == failing_ && from_byte + out.size() > all.size() / 2)
                return Result<>(make_error(ErrorCode::kDataLoss, "'{}' cannot be read", name));
            std::memcpy(out.data(), all.data() + from_byte, out.size());
            return Result<>(Ok{});
        };
        return bytes;
    }

    struct Staged {
        std::vector<std::byte> target{};
        messages::WorkerStaged vote{};
    };
    // Stages all tensors at once; on the CPU if `gpu` is null. With `pieces` the target is in host
    // memory, and the tensors arrive from the GPU's, in two parts of their rows.
    Staged stage(From from, GpuStaging* gpu, PinnedPieces* pieces = nullptr) {
        const auto size = static_cast<std::size_t>(layout_.bytes());
        Staged staged{.target = std::vector<std::byte>(size)};
        const auto on_gpu = kernels::DeviceBuffer::create(gpu == nullptr ? 0 : layout_.bytes());
        EXPECT_TRUE(on_gpu) << on_gpu.error().message;
        auto* target =
            gpu == nullptr ? staged.target.data() : static_cast<std::byte*>(on_gpu->data());
        if (gpu != nullptr) kernels::copy_and_wait(target, staged.target.data(), layout_.bytes());
        CopyLedger live(0, layout_.tensors().size());
        CopyLedger other(1, layout_.tensors().size());
        const ModelConfig config;
        const messages::UpdateSpec spec;
        const Pace pace(1.0);
        const std::atomic<bool> is_dropped{false};
        WeightStage stage(StageArgs{
            .spec = spec,
            .layout = layout_,
            .config = config,
            .ops = *kernels::cpu_ops(best_isa()),
            .add_run = digest::add_run_on(best_isa()),
            .gpu = gpu,
            .pieces = pieces,
            .target = target,
            .target_ledger = other,
            .live_ledger = live,
            .target_bytes = layout_.bytes(),
            .pace = pace,
            .num_threads = kThreads,
            .is_dropped = is_dropped,
            .at = [this](std::string_view name) { ++num_reached_[std::string(name)]; }});
        Result<> result = stage.begin();
        std::vector<Incoming> incoming;
        for (const WeightTensor& tensor : layout_.tensors())
            incoming.push_back(
                {.spec = {.name = tensor.name, .shape = tensor.shape},
                 .bytes = bytes_from(from, tensor.name)}
            );
        if (result) {
            result = pieces != nullptr ? stage_rows(stage)
                                       : stage.stage_tensors(incoming, WeightStage::Expect::kAll);
        }
        if (result) result = stage.finish();
        staged.vote = stage.vote(result);
        if (gpu != nullptr) kernels::copy_and_wait(staged.target.data(), target, layout_.bytes());
        return staged;
    }
    Result<> stage_rows(WeightStage& stage) {
        for (const WeightTensor& tensor : layout_.tensors()) {
            const std::int64_t row_bytes = tensor.whole_bytes() / tensor.whole_rows;
            const std::int64_t num_first = (tensor.whole_rows + 1) / 2;
            for (const TensorRows rows :
                 {TensorRows{.begin = 0, .num = num_first},
                  TensorRows{.begin = num_first, .num = tensor.whole_rows - num_first}}) {
                if (rows.num == 0) continue;
                const std::int64_t bytes = rows.num * row_bytes;
                ASSIGN_OR_RETURN(const auto there, kernels::DeviceBuffer::create(bytes));
                auto* const data = static_cast<std::byte*>(there.data());
                const std::byte* const sent = sent_.at(tensor.name).data() + rows.begin * row_bytes;
                kernels::copy_and_wait(data, sent, bytes);
                const std::vector<Incoming> incoming{
                    {.spec = {.name = tensor.name, .shape = tensor.shape},
                     .bytes = {.data = data, .is_on_gpu = true},
                     .rows = rows}};
                RETURN_IF_ERROR(stage.stage_tensors(incoming, WeightStage::Expect::kMore));
            }
        }
        return Ok{};
    }
    Staged stage_on_gpu(From from) {
        const auto pieces = PinnedPieces::make(kThreads);
        EXPECT_TRUE(pieces) << pieces.error().message;
        Result<GpuStaging> gpu = GpuStaging::make(layout_, *kernels::cuda_ops(), **pieces);
        EXPECT_TRUE(gpu) << gpu.error().message;
        return stage(from, &*gpu);
    }

    WeightLayout layout_ = layout();
    unsigned seed_ = 0;
    std::map<std::string, std::vector<std::byte>> sent_{};
    std::string failing_{};
    std::map<std::string, int> num_reached_{};
    std::mutex mutex_{};
    std::set<std::thread::id> readers_{};
};

TEST_F(GpuStage, P10_ThreadsPutEveryByteInItsPlaceFromMemoryAndFromFiles) {
    const Staged expected = stage(From::kMemory, nullptr);
    ASSERT_TRUE(expected.vote.outcome.ok) << expected.vote.outcome.problems.front();
    for (const From from : {From::kMemory, From::kFile}) {
        num_reached_.clear();
        const Staged staged = stage_on_gpu(from);
        ASSERT_TRUE(staged.vote.outcome.ok) << staged.vote.outcome.problems.front();
        EXPECT_TRUE(staged.target == expected.target);
        ASSERT_EQ(staged.vote.digests.size(), expected.vote.digests.size());
        for (std::size_t i = 0; i < staged.vote.digests.size(); ++i) {
            EXPECT_EQ(staged.vote.digests[i].lane0, expected.vote.digests[i].lane0);
            EXPECT_EQ(staged.vote.digests[i].lane1, expected.vote.digests[i].lane1);
        }
        EXPECT_EQ(staged.vote.outcome.bytes, layout_.bytes());
        EXPECT_EQ(staged.vote.outcome.tensors, std::ssize(layout_.tensors()));
        EXPECT_EQ(num_reached_["stage_half"], 1) << "where tests of faults kill a rank";
    }
    EXPECT_GE(readers_.size(), 2U) << "threads that read";
}

TEST_F(GpuStage, P10_RowsInTheGpusMemoryArriveInACopyInHostMemory) {
    const Staged expected = stage(From::kMemory, nullptr);
    const auto pieces = PinnedPieces::make(kThreads);
    ASSERT_TRUE(pieces) << pieces.error().message;
    const Staged staged = stage(From::kMemory, nullptr, pieces->get());
    ASSERT_TRUE(staged.vote.outcome.ok) << staged.vote.outcome.problems.front();
    EXPECT_TRUE(staged.target == expected.target);
    EXPECT_EQ(staged.vote.digests, expected.vote.digests);
}

TEST_F(GpuStage, P2_APieceThatCannotBeReadEndsTheStageAndIsNamed) {
    failing_ = "whole";
    const Staged staged = stage_on_gpu(From::kFile);
    EXPECT_FALSE(staged.vote.outcome.ok);
    EXPECT_EQ(staged.vote.outcome.code, ErrorCode::kDataLoss);
    ASSERT_EQ(staged.vote.outcome.problems.size(), 1U);
    EXPECT_EQ(staged.vote.outcome.problems.front(), "'whole' cannot be read");
    failing_.clear();
    EXPECT_TRUE(stage_on_gpu(From::kFile).vote.outcome.ok);
}

TEST(GpuPiecesDeathTest, APieceThatNobodyGivesBackIsNotWaitedForWithoutEnd) {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    const auto take_all = [] {
        const auto pieces = PinnedPieces::make(1, std::chrono::milliseconds(50));
        std::vector<PinnedPieces::Lease> leases;
        for (int i = 0; i <= 1 + PinnedPieces::kInTransit; ++i) leases.push_back((*pieces)->take());
    };
    EXPECT_DEATH(take_all(), "CHECK failed: may_come");
}

TEST(GpuPieces, ThreadsSendAndFetchEveryByte) {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    constexpr std::int64_t kPiece = PinnedPieces::kPieceBytes;
    const auto pieces = PinnedPieces::make(2);
    ASSERT_TRUE(pieces) << pieces.error().message;
    for (const std::int64_t bytes : {std::int64_t{1}, kPiece, kPiece + 1, 9 * kPiece - 5}) {
        const std::vector<std::byte> sent = random_bytes(bytes, 3);
        const auto there = kernels::DeviceBuffer::create(bytes);
        ASSERT_TRUE(there);
        auto* const data = static_cast<std::byte*>(there->data());
        for (const int num_threads : {0, 2, 9}) {  // nine: more than the pieces allow at once
            std::optional<TaskPool> threads;
            if (num_threads > 0) threads.emplace(num_threads);
            TaskPool* const pool = threads ? &*threads : nullptr;
            kernels::fill_device(data, 0xaa, bytes, (*pieces)->stream());
            (*pieces)->send(data, sent.data(), bytes, pool);
            (*pieces)->wait();
            std::vector<std::byte> seen(sent.size());
            kernels::copy_and_wait(seen.data(), data, bytes);  // in another stream
            EXPECT_TRUE(seen == sent) << bytes << " bytes by " << num_threads;
            std::vector<std::byte> fetched(sent.size());
            (*pieces)->fetch(fetched.data(), data, bytes, pool);
            EXPECT_TRUE(fetched == sent) << bytes << " bytes by " << num_threads;
        }
    }
    { const PinnedPieces::Lease unused = (*pieces)->take(); }
    for (int i = 0; i < 20; ++i) (void)(*pieces)->take();  // pieces that are not sent are returned
}

// With five pieces, two threads that each waited for a fourth piece would wait for each other.
TEST(GpuPieces, ThreadsThatFetchAtOnceDoNotWaitForEachOther) {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    constexpr std::int64_t kBytes = 6 * PinnedPieces::kPieceBytes;
    const auto pieces = PinnedPieces::make(1, std::chrono::seconds(20));
    ASSERT_TRUE(pieces) << pieces.error().message;
    const std::vector<std::byte> sent = random_bytes(kBytes, 3);
    const auto there = kernels::DeviceBuffer::create(kBytes);
    ASSERT_TRUE(there);
    auto* const data = static_cast<std::byte*>(there->data());
    (*pieces)->send(data, sent.data(), kBytes);
    (*pieces)->wait();
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            std::vector<std::byte> fetched(sent.size());
            for (int round = 0; round < 5; ++round) {
                (*pieces)->fetch(fetched.data(), data, kBytes);
                EXPECT_TRUE(fetched == sent);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace pitstop::tp_worker
