#include "tests/kernels/attention_batch.h"

namespace pitstop::kernels::test {
namespace {

class Attention : public OnBackend {
  protected:
    [[nodiscard]] AttentionOp op() const { return attention_of(ops()); }
};
PITSTOP_ON_BACKENDS(Attention, Order::kEvery);

TEST_P(Attention, MeetsTheReferenceOnAwkwardShapes) {
    std::vector<Heads> shapes = {{4, 1, 128}, {6, 2, 64}, {7, 1, 64}};
    if (is_gpu() && !is_small())
        shapes.insert(shapes.end(), {{32, 8, 128}, {2, 2, 128}, {16, 1, 64}});
    for (const Heads& heads : shapes) {
        for (const std::int32_t page_size : {1, 5, 16, 64})
            expect_reference<bf16, float>(op(), heads, page_size, kNoWindow, place());
        if (is_gpu()) expect_reference<bf16, bf16>(op(), heads, 16, kNoWindow, place());
        for (const std::int32_t window : {1, 2, 63, 64, 65, 300})
            expect_reference<bf16, float>(op(), heads, 16, window, place());
    }
}

// A GPU computes these with the general kernel, which has one order.
class AttentionOfOtherHeads : public Attention {};
PITSTOP_ON_BACKENDS(AttentionOfOtherHeads, Order::kDefault);

TEST_P(AttentionOfOtherHeads, MeetsTheReference) {
    for (const Heads& heads :
         {Heads{4, 2, 32},
          Heads{3, 3, 24},
          Heads{2, 1, 80},
          Heads{2, 1, 128},
          Heads{20, 1, 64},
          Heads{5, 1, 96},
          Heads{20, 1, 10},
          Heads{2, 1, 256}}) {
        expect_reference<float, float>(op(), heads, 16, kNoWindow, place());
        expect_reference<float, float>(op(), heads, 5, 65, place());
        if (is_gpu()) continue;
        expect_reference<bf16, float>(op(), heads, 7, kNoWindow, place());
        for (const std::int32_t page_size : {1, 5, 64}) {
            expect_reference<float, float>(op(), heads, page_size, kNoWindow, place());
            expect_reference<bf16, float>(op(), heads, page_size, kNoWindow, place());
        }
        for (const std::int32_t window : {1, 2, 63, 64, 300}) {
            expect_reference<float, float>(op(), heads, 16, window, place());
            expect_reference<bf16, float>(op(), heads, 7, window, place());
        }
    }
    if (!is_gpu()) return;
    expect_reference<bf16, float>(op(), {3, 3, 24}, 16, kNoWindow, place());
    expect_reference<bf16, bf16>(op(), {20, 1, 64}, 16, 65, place());
    expect_reference<bf16, bf16>(op(), {5, 1, 96}, 16, kNoWindow, place());
    expect_reference<bf16, bf16>(op(), {2, 1, 256}, 5, 300, place());
}

// A row without new tokens, such as a padded one, has no effect.
TEST_P(Attention, EmptyRowsAreSkipped) {
    const Heads heads{4, 1, 64};
    const Request<bf16> a = make_request<bf16>(90, heads, 1);
    const Batch<bf16> plain({{&a, 0, 90}, {&a, 89, 90}}, heads, 16, kNoWindow, 3);
    const Batch<bf16> padded(
        {{&a, 5, 5}, {&a, 0, 90}, {&a, 7, 7}, {&a, 9, 9}, {&a, 89, 90}, {&a, 1, 1}},
        heads,
        16,
        kNoWindow,
        3
    );
    EXPECT_EQ(plain.run(op(), place()).bits(), padded.run(op(), place()).bits());
}

// A later token whose key and value are infinite does not reach an earlier one of the same chunk.
TEST_P(Attention, LaterKeysAreNotReadByEarlierTokens) {
    const Heads heads{2, 1, 32};
    Request<float> request = make_request<float>(40, heads, 3);
    const Batch<float> clean({{&request, 0, 40}}, heads, 8, kNoWindow, 1);
    const Matrix<float> expected = clean.run(op(), place());
    for (std::int64_t i = 0; i < 32; ++i) {
        request.keys(30, i) = std::numeric_limits<float>::infinity();
        request.values(30, i) = std::numeric_limits<float>::quiet_NaN();
    }
    const Batch<float> poisoned({{&request, 0, 40}}, heads, 8, kNoWindow, 1);
    const Matrix<float> actual = poisoned.run(op(), place());
    for (std::int64_t t = 0; t < 30; ++t)
        EXPECT_EQ(actual.bits(t), expected.bits(t)) << "token " << t;
}

// P6: each position of a request has the same bits computed alone, token by token, as in other
// batches, chunks and pages.
class AttentionInFixedOrder : public Attention {
  protected:
    // The bits of some positions, each computed alone; empty for the others.
    template <class T>
    std::vector<std::string> bits_alone(
        const Request<T>& request, const Heads& heads, std::int32_t window
    ) {
        std::vector<std::string> bits(static_cast<std::size_t>(request.len));
        const Place alone{.stream = one_thread(), .is_gpu = is_gpu()};
        for (std::int32_t p = 0; p < request.len; p += p >= 70 ? 53 : is_gpu() ? 3 : 1) {
            const Batch<T> batch({{&request, p, p + 1}}, heads, 16, window, 1);
            bits[static_cast<std::size_t>(p)] = batch.run(op(), alone).bits(0);
        }
        return bits;
    }

    template <class T>
    void expect_same_bits(const Heads& heads, std::int32_t window) {
        SCOPED_TRACE(
            testing::Message() << "D " << heads.D << " window " << window << " size " << sizeof(T)
        );
        const std::int32_t len = 601;  // past two segments
        const Request<T> request = make_request<T>(len, heads, 3);
        const Request<T> other = make_request<T>(len, heads, 40);
        const std::vector<std::string> alone = bits_alone(request, heads, window);
        std::mt19937 engine(9);
        const auto pick = [&](std::int32_t begin, std::int32_t end) {
            return begin + static_cast<std::int32_t>(engine() % static_cast<unsigned>(end - begin));
        };
        int num_compared = 0;
        for (int round = 0; round < (!is_gpu() ? 12 : is_small() ? 8 : 40); ++round) {
            const std::int32_t page_size =
                std::vector{1, 3, 16, 64, 256}[static_cast<std::size_t>(pick(0, 5))];
            std::vector<Span<T>> rows;
            for (int before = pick(0, 3); before > 0; --before)
                rows.push_back({&other, 0, pick(1, 40)});
            const std::int32_t begin = round % 3 == 0 ? 0 : pick(0, len);
            const std::int32_t end = round % 4 == 3 ? begin + 1 : pick(begin + 1, len + 1);
            const std::size_t row = rows.size();
            rows.push_back({&request, begin, end});
            for (int after = pick(0, 3); after > 0; --after)
                rows.push_back({&other, 500, 500 + pick(1, 9)});
            const Batch<T> batch(rows, heads, page_size, window, static_cast<unsigned>(round));
            const Matrix<float> out = round % 2 == 0 ? batch.run(op(), place())
                                                     : batch.run(op(), place(), /*num_bytes=*/0);
            for (std::int32_t p = begin; p < end; ++p) {
                const std::string& expected = alone[static_cast<std::size_t>(p)];
                if (expected.empty()) continue;
                ++num_compared;
                ASSERT_EQ(out.bits(batch.q_starts[row] + p - begin), expected)
                    << "position " << p << " of [" << begin << ", " << end << "), pages of "
                    << page_size;
            }
        }
        EXPECT_GT(num_compared, 20);
    }
};
PITSTOP_ON_BACKENDS(AttentionInFixedOrder, Order::kFixed);

TEST_P(AttentionInFixedOrder, P6_TokenDoesNotDependOnChunksPagesBatchOrThreads) {
    expect_same_bits<bf16>({4, 1, 64}, kNoWindow);
    expect_same_bits<bf16>({6, 2, 64}, 100);
    expect_same_bits<bf16>({5, 1, 128}, kNoWindow);
    expect_same_bits<bf16>({2, 2, 128}, 300);
    if (is_gpu()) return;
    expect_same_bits<bf16>({4, 2, 32}, kNoWindow);
    expect_same_bits<float>({4, 2, 32}, kNoWindow);
    expect_same_bits<bf16>({3, 1, 24}, 100);
    expect_same_bits<float>({5, 1, 80}, 64);
    // Enough heads that keys are packed for groups of tiles on the CPU, and a D that ends in half a
    // word.
    expect_same_bits<bf16>({16, 16, 25}, kNoWindow);
    expect_same_bits<bf16>({16, 16, 64}, 90);
    expect_same_bits<float>({16, 16, 25}, kNoWindow);
}

}  // namespace
}  // namespace pitstop::kernels::test
