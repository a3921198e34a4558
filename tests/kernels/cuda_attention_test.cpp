// Tests the parts that only CUDA's attention has: its kernels for prefill, its workspace, and how
// it shares unequal rows among blocks. attention_test.cpp has what all backends do.
#include "kernels/attention_cuda.h"
#include "tests/kernels/attention_batch.h"
#include "tests/kernels/cuda_support.h"
#if defined(PITSTOP_EMULATED)
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/faults.h"
#endif

#include <random>

namespace pitstop::kernels::test {
namespace {

constexpr AttentionOp kFreeOrder{attention_cuda, attention_cuda_workspace_bytes};
constexpr AttentionOp kFixedOrder{attention_cuda_deterministic, attention_cuda_workspace_bytes};
// The kernels of devices without wgmma.
constexpr AttentionOp kMma{attention_cuda_mma, attention_cuda_workspace_bytes};

using CudaAttention = OnCuda;

TEST_F(CudaAttention, WithoutWgmmaMeetsTheReference) {
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}, Heads{7, 1, 64}}) {
        for (const std::int32_t page_size : {1, 5, 16, 64})
            expect_reference<bf16, float>(kMma, heads, page_size, kNoWindow, place());
        expect_reference<bf16, bf16>(kMma, heads, 16, kNoWindow, place());
        for (const std::int32_t window : {1, 2, 63, 64, 65, 300})
            expect_reference<bf16, float>(kMma, heads, 16, window, place());
    }
}

// Six tiles of keys, so that shared memory with room for two is refilled again and again.
TEST_F(CudaAttention, LongPrefillsMeetTheReference) {
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}}) {
        SCOPED_TRACE(testing::Message() << "D " << heads.D);
        const Request<bf16> a = make_request<bf16>(700, heads, 1);
        const Batch<bf16> batch({{&a, 660, 700}}, heads, 16, kNoWindow, 5);
        for (const AttentionOp op : {kFreeOrder, kMma})
            expect_reference<bf16, float>(op, batch, place());
    }
}

// One request's keys are divided among all blocks: more records than a warp has lanes.
TEST_F(CudaAttention, ManyRecordsOfAPairMeetTheReference) {
    for (const Heads& heads : {Heads{4, 1, 64}, Heads{7, 1, 64}, Heads{7, 1, 128}}) {
        SCOPED_TRACE(testing::Message() << "Q " << heads.Q << " D " << heads.D);
        constexpr std::int32_t kKeys = 48 * AttentionArgs::kBlockKeys;
        const Request<bf16> a = make_request<bf16>(kKeys, heads, 1);
        const Batch<bf16> batch({{&a, kKeys - 1, kKeys}}, heads, 16, kNoWindow, 5);
        expect_reference<bf16, float>(kFreeOrder, batch, place());
    }
}

// Few tokens after many keys: blocks share the keys of a tile, and the last of them merges. Some
// rows see no key of some parts. Between calls nothing is cleared.
TEST_F(CudaAttention, ShortChunksOnLongKvMeetTheReference) {
    constexpr auto room_of = [](const AttentionShape&) { return std::int64_t{1} << 20; };
    constexpr AttentionOp kRoomy{attention_cuda, room_of};
    constexpr std::int32_t kKeys = 700;
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}}) {
        const Request<bf16> a = make_request<bf16>(kKeys, heads, 1);
        const Request<bf16> b = make_request<bf16>(300, heads, 2);
        for (const std::int32_t window : {kNoWindow, 140}) {
            SCOPED_TRACE(testing::Message() << "D " << heads.D << " window " << window);
            for (const std::int32_t num_tokens : {3, 30}) {
                const Batch<bf16> one({{&a, kKeys - num_tokens, kKeys}}, heads, 16, window, 5);
                expect_reference<bf16, float>(kRoomy, one, place());
            }
            Batch<bf16> two({{&a, kKeys - 3, kKeys}, {&b, 100, 104}}, heads, 16, window, 6);
            expect_reference<bf16, float>(kRoomy, two, place());
            const Space space(room_of({}), place());
            const std::string bits = two.run_in(space, kRoomy, place()).bits();
            EXPECT_EQ(two.run_in(space, kRoomy, place()).bits(), bits);
            EXPECT_EQ(space.arrivals.fetch(), std::vector<std::uint32_t>(AttentionArgs::kArrivals));
        }
    }
}

// The caller's hints about the rows, and the amount of scratch, change the time but not the bits.
TEST_F(CudaAttention, HintsAndWorkspaceDoNotChangeTheBits) {
    const Heads heads{4, 2, 64};
    const Request<bf16> a = make_request<bf16>(700, heads, 1);
    Batch<bf16> decode({{&a, 699, 700}, {&a, 255, 256}, {&a, 256, 257}}, heads, 16, kNoWindow, 3);
    const std::string bits = decode.run(kFixedOrder, place()).bits();
    EXPECT_EQ(decode.run(kFixedOrder, place(), std::nullopt, 1).bits(), bits);
    EXPECT_EQ(decode.run(kFixedOrder, place(), 0).bits(), bits);
    EXPECT_EQ(decode.run(kFixedOrder, place(), 0, 1).bits(), bits);
    // With a free split there are fewer, longer segments: the same result within its bound.
    const Matrix<float> wide = decode.run(kFreeOrder, place());
    const Matrix<float> narrow = decode.run(kFreeOrder, place(), 3 * 4 * 2 * (64 + 2) * 4);
    expect_within(wide, narrow, [](std::int64_t, std::int64_t) { return 6.0 * 2.0 * kEps16; });
}

// One long row among more short rows than decode has blocks: in free order the long row's keys are
// divided among many blocks.
class UnequalRows : public CudaAttention {
  protected:
    // The long row is among the others; some have one key, as padded rows do; one has no new token.
    static Batch<bf16> batch(
        const Request<bf16>& request, const Heads& heads, std::int32_t window, unsigned seed
    ) {
        std::mt19937 engine(seed);
        std::vector<Span<bf16>> rows;
        const int num_rows = is_small() ? 60 : 1800;
        for (int r = 0; r < num_rows; ++r) {
            const auto len =
                static_cast<std::int32_t>(r % 4 == 0 ? 1 : 1 + engine() % (r % 7 == 0 ? 300 : 70));
            rows.push_back({&request, len - 1, len});
        }
        const auto place = static_cast<std::size_t>(engine() % static_cast<unsigned>(num_rows));
        rows[place] = {&request, request.len - 1, request.len};
        rows[(place + 1) % rows.size()] = {&request, 7, 7};
        return Batch<bf16>(std::move(rows), heads, 16, window, seed);
    }
};

TEST_F(UnequalRows, MeetTheReference) {
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}, Heads{16, 1, 128}}) {
        const Request<bf16> request = make_request<bf16>(2300, heads, 1);
        for (const std::int32_t window : {kNoWindow, 700}) {
            SCOPED_TRACE(testing::Message() << "D " << heads.D << " window " << window);
            Batch<bf16> rows = batch(request, heads, window, 5);
            for (const AttentionOp op : {kFreeOrder, kFixedOrder})
                expect_reference<bf16, float>(op, rows, place());
        }
    }
}

// P6, with three sizes of workspace: room for each segment's result; room for a pair's result
// alone; and none, where prefill's kernel computes all rows.
TEST_F(UnequalRows, P6_HaveTheSameBitsWhateverRoomThereIs) {
    const Heads heads{16, 1, 128};  // the largest group, which sets the size of the workspace
    const Request<bf16> request = make_request<bf16>(2300, heads, 1);
    for (const std::int32_t window : {kNoWindow, 700}) {
        Batch<bf16> rows = batch(request, heads, window, 7);
        const std::int64_t least = attention_cuda_workspace_bytes(
            {.num_tokens = 0, .num_q_heads = heads.Q, .head_dim = heads.D, .kv_len_max = 2300}
        );
        const std::string bits = rows.run(kFixedOrder, place()).bits();
        for (const std::int64_t num_bytes : {2 * least, least, least - 1, std::int64_t{0}}) {
            EXPECT_EQ(rows.run(kFixedOrder, place(), num_bytes).bits(), bits)
                << num_bytes << " bytes";
        }
    }
}

// Calls follow each other, as in a model's layers and steps: nothing is cleared between them.
TEST_F(UnequalRows, ACallLeavesWhatTheNextNeeds) {
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}}) {
        const Request<bf16> request = make_request<bf16>(2300, heads, 1);
        const Request<bf16> other = make_request<bf16>(900, heads, 30);
        Batch<bf16> first = batch(request, heads, kNoWindow, 5);
        Batch<bf16> second = batch(other, heads, kNoWindow, 6);
        const Space space(attention_cuda_workspace_bytes(first.shape()), place());
        for (const AttentionOp op : {kFreeOrder, kFixedOrder}) {
            const std::string first_bits = first.run(op, place()).bits();
            const std::string second_bits = second.run(op, place()).bits();
            for (int round = 0; round < 2; ++round) {
                ASSERT_EQ(first.run_in(space, op, place()).bits(), first_bits) << round;
                ASSERT_EQ(second.run_in(space, op, place()).bits(), second_bits) << round;
            }
            EXPECT_EQ(space.arrivals.fetch(), std::vector<std::uint32_t>(AttentionArgs::kArrivals));
        }
    }
}

#if defined(PITSTOP_EMULATED)
// A captured call serves other lengths and pages, with the same number of rows.
TEST_F(UnequalRows, LaunchesDoNotFollowTheLengths) {
    const Heads heads{6, 2, 64};
    const Request<bf16> long_one = make_request<bf16>(2300, heads, 1);
    const Request<bf16> short_one = make_request<bf16>(40, heads, 1);
    for (const AttentionOp op : {kFreeOrder, kFixedOrder}) {
        std::vector<std::int64_t> launches, blocks;
        for (const Request<bf16>* request : {&long_one, &short_one}) {
            Batch<bf16> rows = request == &long_one ? batch(*request, heads, kNoWindow, 5)
                                                    : batch(*request, heads, 30, 6);
            const Space space(
                attention_cuda_workspace_bytes(batch(long_one, heads, kNoWindow, 5).shape()),
                place()
            );
            const std::int64_t num_launches = emulator::num_calls("cudaLaunchKernelEx");
            const std::int64_t num_blocks = emulator::num_blocks_run();
            rows.run_in(space, op, place(), /*q_len_max=*/1);
            launches.push_back(emulator::num_calls("cudaLaunchKernelEx") - num_launches);
            blocks.push_back(emulator::num_blocks_run() - num_blocks);
        }
        EXPECT_EQ(launches, (std::vector<std::int64_t>{1, 1}));
        EXPECT_EQ(blocks.front(), blocks.back());
    }
}
#endif

}  // namespace
}  // namespace pitstop::kernels::test
