#include "kernels/attention.h"
#include "kernels/attention_cuda.h"
#include "tests/kernels/cuda_support.h"
#if defined(PITSTOP_EMULATED)
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/faults.h"
#endif

#include <algorithm>
#include <memory>
#include <random>

namespace pitstop::kernels::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using AttentionFn = void (*)(const AttentionArgs&);

struct Heads {
    std::int32_t Q;
    std::int32_t K;
    std::int32_t D;
};

// Holds one request's queries, keys and values, apart from any page.
template <class T>
struct Request {
    std::int32_t len;
    Matrix<T> queries;  // [len, Q*D]
    Matrix<T> keys;     // [len, K*D]
    Matrix<T> values;   // [len, K*D]
};
template <class T>
Request<T> make_request(std::int32_t len, const Heads& heads, unsigned seed) {
    return {
        .len = len,
        .queries = random_matrix<T>(len, heads.Q * heads.D, seed),
        .keys = random_matrix<T>(len, heads.K * heads.D, seed + 1),
        .values = random_matrix<T>(len, heads.K * heads.D, seed + 2)};
}

// Describes a row: a request and the positions [begin, end) it computes now.
template <class T>
struct Span {
    const Request<T>* request;
    std::int32_t begin;
    std::int32_t end;
};

// Holds what calls of attention work in, on the device: as a model has it for all its layers.
struct Space {
    Space(std::int64_t bytes, Stream stream)
        : scratch(bytes, stream),
          arrivals(std::vector<std::uint32_t>(AttentionArgs::kArrivals), stream) {}

    DeviceScratch scratch;
    DeviceArray<std::uint32_t> arrivals;
};

// Holds a batch in host memory. KV is in pages in shuffled order; NaN wherever no key that some
// token of the batch sees has been written: past a row's end, and before its window.
template <class T>
struct Batch {
    Batch(
        std::vector<Span<T>> rows_in,
        const Heads& heads_in,
        std::int32_t page_size,
        std::int32_t window_in,
        unsigned seed
    )
        : rows(std::move(rows_in)), heads(heads_in), window(window_in) {
        std::int32_t num_pages = 1;
        for (const Span<T>& row : rows) num_pages += (row.end + page_size - 1) / page_size;
        kv = {
            .dtype = kDTypeOf<T>,
            .num_pages = num_pages,
            .page_size = page_size,
            .num_kv_heads = heads.K,
            .head_dim = heads.D};
        memory.resize(static_cast<std::size_t>(kv_bytes(kv)) / sizeof(T), from_double<T>(kNan));
        kv.data = memory.data();
        for (std::int32_t i = 0; i < num_pages; ++i) pages.push_back(PageId{i});
        std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
        std::int32_t num_tokens = 0;
        std::int32_t next_page = 0;
        for (const Span<T>& row : rows) {
            q_starts.push_back(num_tokens);
            kv_lens.push_back(row.end);
            page_starts.push_back(next_page);
            num_tokens += row.end - row.begin;
            const std::int32_t first = row.begin < window ? 0 : row.begin - window + 1;
            for (std::int32_t j = first; j < row.end; ++j) write(row, next_page, j);
            next_page += (row.end + page_size - 1) / page_size;
        }
        q_starts.push_back(num_tokens);
        queries = std::make_unique<Matrix<T>>(num_tokens, heads.Q * heads.D, 0x7f);
        std::int64_t t = 0;
        for (const Span<T>& row : rows) {
            for (std::int32_t p = row.begin; p < row.end; ++p, ++t) {
                for (std::int64_t c = 0; c < queries->num_cols(); ++c)
                    (*queries)(t, c) = row.request->queries(p, c);
            }
        }
    }

    void write(const Span<T>& row, std::int32_t first_page, std::int32_t j) {
        const PageId page = pages[static_cast<std::size_t>(first_page + j / kv.page_size)];
        for (std::int32_t h = 0; h < heads.K; ++h) {
            const std::int64_t key = key_offset(kv, page, h) + (j % kv.page_size) * heads.D;
            for (std::int32_t i = 0; i < heads.D; ++i) {
                memory[static_cast<std::size_t>(key + i)] = row.request->keys(j, h * heads.D + i);
                memory[static_cast<std::size_t>(key + value_offset(kv) + i)] =
                    row.request->values(j, h * heads.D + i);
            }
        }
    }

    AttentionArgs args(ActView out) {
        return {
            .q = queries->view(),
            .out = out,
            .kv = kv,
            .num_q_heads = heads.Q,
            .num_rows = static_cast<std::int32_t>(rows.size()),
            .q_starts = q_starts.data(),
            .kv_lens = kv_lens.data(),
            .pages = pages.data(),
            .page_starts = page_starts.data(),
            .kv_len_max = *std::max_element(kv_lens.begin(), kv_lens.end()),
            .window = window,
            .scale = 1.f / std::sqrt(static_cast<float>(heads.D))};
    }

    // Returns the bytes of workspace that the op asks for.
    std::int64_t workspace_bytes() const {
        return attention_cuda_workspace_bytes(
            {.num_tokens = queries->num_rows(),
             .num_q_heads = heads.Q,
             .head_dim = heads.D,
             .kv_len_max = *std::max_element(kv_lens.begin(), kv_lens.end())}
        );
    }

    // Returns the op's output, [T, Q*D].
    template <class Out = float>
    Matrix<Out> run(
        AttentionFn op, Stream stream, std::int64_t num_bytes = -1, std::int32_t q_len_max = 0
    ) {
        const Space space(num_bytes < 0 ? workspace_bytes() : num_bytes, stream);
        return run_in<Out>(space, op, stream, q_len_max);
    }

    template <class Out = float>
    Matrix<Out> run_in(
        const Space& space, AttentionFn op, Stream stream, std::int32_t q_len_max = 0
    ) {
        Matrix<Out> out(queries->num_rows(), queries->num_cols(), 0x22);
        const OnDevice<T> queries_there(*queries, stream);
        const OnDevice<Out> out_there(out, stream);
        const DeviceArray<T> memory_there(memory, stream);
        const DeviceArray<PageId> pages_there(pages, stream);
        const DeviceArray<std::int32_t> q_starts_there(q_starts, stream);
        const DeviceArray<std::int32_t> kv_lens_there(kv_lens, stream);
        const DeviceArray<std::int32_t> page_starts_there(page_starts, stream);
        AttentionArgs a = args(out_there.view());
        a.q = queries_there.view();
        a.kv.data = memory_there.data();
        a.pages = pages_there.data();
        a.q_starts = q_starts_there.data();
        a.kv_lens = kv_lens_there.data();
        a.page_starts = page_starts_there.data();
        a.q_len_max = q_len_max;
        a.workspace = space.scratch.workspace();
        a.arrivals = space.arrivals.data();
        a.stream = stream;
        op(a);
        out_there.fetch(out);
        return out;
    }

    std::vector<Span<T>> rows;
    Heads heads;
    std::int32_t window;
    KvCache kv{};
    std::vector<T> memory{};
    std::vector<PageId> pages{};
    std::vector<std::int32_t> q_starts{}, kv_lens{}, page_starts{};
    std::unique_ptr<Matrix<T>> queries{};
};

class CudaAttention : public OnCuda {
  protected:
    template <class T, class Out>
    void expect_reference(
        AttentionFn op, const Heads& heads, std::int32_t page_size, std::int32_t window
    ) {
        SCOPED_TRACE(
            testing::Message() << "Q " << heads.Q << " K " << heads.K << " D " << heads.D << " P "
                               << page_size << " window " << window << " size " << sizeof(T)
        );
        const Request<T> a = make_request<T>(page_size * 3 + 1, heads, 1);
        const Request<T> b = make_request<T>(140, heads, 10);
        const Request<T> c = make_request<T>(1, heads, 20);
        const Request<T> d = make_request<T>(520, heads, 30);
        Batch<T> batch(
            {{&a, 0, a.len},
             {&b, 65, 140},
             {&c, 0, 1},
             {&d, 519, 520},
             {&d, 255, 258},
             {&d, 63, 64}},
            heads,
            page_size,
            window,
            5
        );
        expect_reference<T, Out>(op, batch);
    }

    template <class T, class Out>
    void expect_reference(AttentionFn op, Batch<T>& batch) {
        Matrix<Out> expected(batch.queries->num_rows(), batch.queries->num_cols(), 0x11);
        attention_ref(batch.args(expected.view()));
        const Matrix<Out> actual = batch.template run<Out>(op, stream());

        // A score errs by `delta`: a chain of D/16 mma (of D products without them), twice e of the
        // magnitudes; a probability by 2 delta (its own and the sum's) and exp2's 2 ulp and its
        // argument's rounding; where it is an mma's operand, by bf16's u. The sums over keys err by
        // 2e per step of 16 keys and per tile. The output is an average of values: all that times
        // max |value|.
        const double D = batch.heads.D;
        const double num_keys = *std::max_element(batch.kv_lens.begin(), batch.kv_lens.end());
        const double score_magnitude = 6.0 * D / std::sqrt(D);
        const double chain = std::is_same_v<T, bf16> ? D / 16.0 + 16.0 : D;
        const double delta = 2.0 * chain * kEps32 * score_magnitude;
        const double probability = std::is_same_v<T, bf16> ? kEps16 : 0.0;
        const double max_value = 6.0;
        const double bound = max_value * (2.0 * delta + probability + 0x1p-20 +
                                          (num_keys / 16.0 + 40.0) * 2.0 * kEps32);
        expect_within(actual, expected, [&](std::int64_t r, std::int64_t col) {
            return bound + 2.02 * rounding_of(kDTypeOf<Out>) * std::abs(expected.value(r, col));
        });
    }
};

TEST_F(CudaAttention, MeetsTheReferenceOnAwkwardShapes) {
    const std::vector<Heads> shapes =
        is_small()
            ? std::vector<Heads>{{4, 1, 128}, {6, 2, 64}, {7, 1, 64}}
            : std::vector<Heads>{
                  {4, 1, 128}, {32, 8, 128}, {6, 2, 64}, {7, 1, 64}, {2, 2, 128}, {16, 1, 64}};
    for (const AttentionFn op :
         {attention_cuda, attention_cuda_mma, attention_cuda_deterministic}) {
        for (const Heads& heads : shapes) {
            for (const std::int32_t page_size : {1, 5, 16, 64})
                expect_reference<bf16, float>(op, heads, page_size, kNoWindow);
            expect_reference<bf16, bf16>(op, heads, 16, kNoWindow);
            for (const std::int32_t window : {1, 2, 63, 64, 65, 300})
                expect_reference<bf16, float>(op, heads, 16, window);
        }
    }
}

// Six tiles of keys, so that what keeps two in shared memory fills each place again and again.
TEST_F(CudaAttention, LongPrefillsMeetTheReference) {
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}}) {
        SCOPED_TRACE(testing::Message() << "D " << heads.D);
        const Request<bf16> a = make_request<bf16>(700, heads, 1);
        Batch<bf16> batch({{&a, 660, 700}}, heads, 16, kNoWindow, 5);
        for (const AttentionFn op : {attention_cuda, attention_cuda_mma})
            expect_reference<bf16, float>(op, batch);
    }
}

TEST_F(CudaAttention, GeneralKernelMeetsTheReference) {
    for (const Heads& heads :
         {Heads{4, 2, 32},
          Heads{3, 3, 24},
          Heads{2, 1, 80},
          Heads{2, 1, 128},
          Heads{20, 1, 64},
          Heads{5, 1, 96},
          Heads{2, 1, 256}}) {
        expect_reference<float, float>(attention_cuda, heads, 16, kNoWindow);
        expect_reference<float, float>(attention_cuda, heads, 5, 65);
    }
    expect_reference<bf16, float>(attention_cuda, {3, 3, 24}, 16, kNoWindow);
    expect_reference<bf16, bf16>(attention_cuda, {20, 1, 64}, 16, 65);
    expect_reference<bf16, bf16>(attention_cuda_deterministic, {5, 1, 96}, 16, kNoWindow);
    expect_reference<bf16, bf16>(attention_cuda_deterministic, {2, 1, 256}, 5, 300);
}

// A row without new tokens, as a padded one, takes part in nothing.
TEST_F(CudaAttention, EmptyRowsAreSkipped) {
    const Heads heads{4, 1, 64};
    const Request<bf16> a = make_request<bf16>(90, heads, 1);
    Batch<bf16> plain({{&a, 0, 90}, {&a, 89, 90}}, heads, 16, kNoWindow, 3);
    Batch<bf16> padded(
        {{&a, 5, 5}, {&a, 0, 90}, {&a, 7, 7}, {&a, 9, 9}, {&a, 89, 90}, {&a, 1, 1}},
        heads,
        16,
        kNoWindow,
        3
    );
    for (const AttentionFn op : {attention_cuda, attention_cuda_deterministic})
        EXPECT_EQ(plain.run(op, stream()).bits(), padded.run(op, stream()).bits());
}

// What the caller knows of the rows, and how much scratch there is, costs time, not correctness.
TEST_F(CudaAttention, HintsAndWorkspaceDoNotChangeTheBits) {
    const Heads heads{4, 2, 64};
    const Request<bf16> a = make_request<bf16>(700, heads, 1);
    Batch<bf16> decode({{&a, 699, 700}, {&a, 255, 256}, {&a, 256, 257}}, heads, 16, kNoWindow, 3);
    const std::string bits = decode.run(attention_cuda_deterministic, stream()).bits();
    EXPECT_EQ(decode.run(attention_cuda_deterministic, stream(), -1, 1).bits(), bits);
    EXPECT_EQ(decode.run(attention_cuda_deterministic, stream(), 0).bits(), bits);
    EXPECT_EQ(decode.run(attention_cuda_deterministic, stream(), 0, 1).bits(), bits);
    // There are fewer, longer segments where the split is free: the same within its bound.
    const Matrix<float> wide = decode.run(attention_cuda, stream());
    const Matrix<float> narrow = decode.run(attention_cuda, stream(), 3 * 4 * 2 * (64 + 2) * 4);
    expect_within(wide, narrow, [](std::int64_t, std::int64_t) { return 6.0 * 2.0 * kEps16; });
}

// One long row beside many short ones, of which there are more than decode has blocks, in free
// order the long one's keys go to many blocks.
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
            for (const AttentionFn op : {attention_cuda, attention_cuda_deterministic})
                expect_reference<bf16, float>(op, rows);
        }
    }
}

// P6: with room for each segment's result, with room for a pair's alone, and without any, where
// prefill's kernel takes all rows.
TEST_F(UnequalRows, P6_HaveTheSameBitsWhateverRoomThereIs) {
    const Heads heads{16, 1, 128};  // the group that room is counted for
    const Request<bf16> request = make_request<bf16>(2300, heads, 1);
    for (const std::int32_t window : {kNoWindow, 700}) {
        Batch<bf16> rows = batch(request, heads, window, 7);
        const std::int64_t least = attention_cuda_workspace_bytes(
            {.num_tokens = 0, .num_q_heads = heads.Q, .head_dim = heads.D, .kv_len_max = 2300}
        );
        const std::string bits = rows.run(attention_cuda_deterministic, stream()).bits();
        for (const std::int64_t num_bytes : {2 * least, least, least - 1, std::int64_t{0}}) {
            EXPECT_EQ(rows.run(attention_cuda_deterministic, stream(), num_bytes).bits(), bits)
                << num_bytes << " bytes";
        }
    }
}

// Calls follow each other, as a model's layers and steps do: nobody clears anything between them.
TEST_F(UnequalRows, ACallLeavesWhatTheNextNeeds) {
    for (const Heads& heads : {Heads{4, 1, 128}, Heads{6, 2, 64}}) {
        const Request<bf16> request = make_request<bf16>(2300, heads, 1);
        const Request<bf16> other = make_request<bf16>(900, heads, 30);
        Batch<bf16> first = batch(request, heads, kNoWindow, 5);
        Batch<bf16> second = batch(other, heads, kNoWindow, 6);
        const Space space(first.workspace_bytes(), stream());
        for (const AttentionFn op : {attention_cuda, attention_cuda_deterministic}) {
            const std::string first_bits = first.run(op, stream()).bits();
            const std::string second_bits = second.run(op, stream()).bits();
            for (int round = 0; round < 2; ++round) {
                ASSERT_EQ(first.run_in(space, op, stream()).bits(), first_bits) << round;
                ASSERT_EQ(second.run_in(space, op, stream()).bits(), second_bits) << round;
            }
            EXPECT_EQ(space.arrivals.fetch(), std::vector<std::uint32_t>(AttentionArgs::kArrivals));
        }
    }
}

#if defined(PITSTOP_EMULATED)
// What a captured call is good for: other lengths and pages, as many rows.
TEST_F(UnequalRows, LaunchesDoNotFollowTheLengths) {
    const Heads heads{6, 2, 64};
    const Request<bf16> long_one = make_request<bf16>(2300, heads, 1);
    const Request<bf16> short_one = make_request<bf16>(40, heads, 1);
    for (const AttentionFn op : {attention_cuda, attention_cuda_deterministic}) {
        std::vector<std::int64_t> launches, blocks;
        for (const Request<bf16>* request : {&long_one, &short_one}) {
            Batch<bf16> rows = request == &long_one ? batch(*request, heads, kNoWindow, 5)
                                                    : batch(*request, heads, 30, 6);
            const Space space(batch(long_one, heads, kNoWindow, 5).workspace_bytes(), stream());
            const std::int64_t num_launches = emulator::num_calls("cudaLaunchKernelEx");
            const std::int64_t num_blocks = emulator::num_blocks_run();
            rows.run_in(space, op, stream(), /*q_len_max=*/1);
            launches.push_back(emulator::num_calls("cudaLaunchKernelEx") - num_launches);
            blocks.push_back(emulator::num_blocks_run() - num_blocks);
        }
        EXPECT_EQ(launches, (std::vector<std::int64_t>{1, 1}));
        EXPECT_EQ(blocks.front(), blocks.back());
    }
}
#endif

// P6: every position of a request, once computed alone token by token, in other batches, chunks and
// pages.
class P6Attention : public CudaAttention {
  protected:
    void expect_same_bits(const Heads& heads, std::int32_t window);
};

void P6Attention::expect_same_bits(const Heads& heads, std::int32_t window) {
    SCOPED_TRACE(testing::Message() << "D " << heads.D << " window " << window);
    const std::int32_t len = 601;  // past two segments
    const Request<bf16> request = make_request<bf16>(len, heads, 3);
    const Request<bf16> other = make_request<bf16>(len, heads, 40);
    std::vector<std::string> alone(static_cast<std::size_t>(len));
    for (std::int32_t p = 0; p < len; p += (p < 70 ? 3 : 53)) {
        Batch<bf16> batch({{&request, p, p + 1}}, heads, 16, window, 1);
        alone[static_cast<std::size_t>(p)] =
            batch.run(attention_cuda_deterministic, stream()).bits(0);
    }
    std::mt19937 engine(9);
    const auto pick = [&](std::int32_t begin, std::int32_t end) {
        return begin + static_cast<std::int32_t>(engine() % static_cast<unsigned>(end - begin));
    };
    int num_compared = 0;
    for (int round = 0; round < (is_small() ? 8 : 40); ++round) {
        const std::int32_t page_size =
            std::vector{1, 3, 16, 64, 256}[static_cast<std::size_t>(pick(0, 5))];
        std::vector<Span<bf16>> rows_of;
        for (int before = pick(0, 3); before > 0; --before)
            rows_of.push_back({&other, 0, pick(1, 40)});
        const std::int32_t begin = round % 3 == 0 ? 0 : pick(0, len);
        const std::int32_t end = round % 4 == 3 ? begin + 1 : pick(begin + 1, len + 1);
        const std::size_t row = rows_of.size();
        rows_of.push_back({&request, begin, end});
        for (int after = pick(0, 3); after > 0; --after)
            rows_of.push_back({&other, 500, 500 + pick(1, 9)});
        Batch<bf16> batch(rows_of, heads, page_size, window, static_cast<unsigned>(round));
        const Matrix<float> out =
            batch.run(attention_cuda_deterministic, stream(), round % 2 == 0 ? -1 : 0);
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

TEST_F(P6Attention, TokenDoesNotDependOnChunksPagesOrBatch) {
    expect_same_bits({4, 1, 64}, kNoWindow);
    expect_same_bits({6, 2, 64}, 100);
    expect_same_bits({5, 1, 128}, kNoWindow);
    expect_same_bits({2, 2, 128}, 300);
}

}  // namespace
}  // namespace pitstop::kernels::test
