#include "kernels/attention.h"

#include "kernels/rope.h"
#include "tests/kernels/support.h"

#include <numeric>

namespace pitstop::kernels::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Holds one request's keys and values, [len, K*D] each, apart from any page.
template <class T>
struct Request {
    std::int32_t len;   // tokens with KV
    Matrix<T> queries;  // [len, Q*D]
    Matrix<T> keys;
    Matrix<T> values;
};

struct Heads {
    std::int32_t Q;
    std::int32_t K;
    std::int32_t D;
};

template <class T>
Request<T> make_request(std::int32_t len, const Heads& heads, unsigned seed) {
    return {
        .len = len,
        .queries = random_matrix<T>(len, heads.Q * heads.D, seed),
        .keys = random_matrix<T>(len, heads.K * heads.D, seed + 1),
        .values = random_matrix<T>(len, heads.K * heads.D, seed + 2),
    };
}

// Holds a batch: for each row, a request and the positions [begin, end) it computes now. KV is in
// pages in shuffled order, NaN wherever no key up to the row's end has been written.
template <class T>
struct Batch {
    struct Row {
        const Request<T>* request;
        std::int32_t begin;
        std::int32_t end;
    };

    Batch(std::vector<Row> rows_in, const Heads& heads_in, std::int32_t page_size, unsigned seed)
        : rows(std::move(rows_in)), heads(heads_in) {
        std::int32_t num_pages = 0;
        for (const Row& row : rows) num_pages += (row.end + page_size - 1) / page_size;
        kv = {
            .dtype = kDTypeOf<T>,
            .num_pages = num_pages,
            .page_size = page_size,
            .num_kv_heads = heads.K,
            .head_dim = heads.D};
        memory.resize(static_cast<std::size_t>(kv_bytes(kv)) / sizeof(T), from_double<T>(kNan));
        kv.data = memory.data();
        pages.resize(static_cast<std::size_t>(num_pages));
        for (std::int32_t i = 0; i < num_pages; ++i) pages[static_cast<std::size_t>(i)] = PageId{i};
        std::mt19937 engine(seed);
        std::shuffle(pages.begin(), pages.end(), engine);

        std::int32_t T_total = 0;
        std::int32_t next_page = 0;
        for (const Row& row : rows) {
            q_starts.push_back(T_total);
            kv_lens.push_back(row.end);
            page_starts.push_back(next_page);
            T_total += row.end - row.begin;
            for (std::int32_t j = 0; j < row.end; ++j) write(row, next_page, j);
            next_page += (row.end + page_size - 1) / page_size;
        }
        q_starts.push_back(T_total);
        queries = std::make_unique<Matrix<T>>(T_total, heads.Q * heads.D, 0x7f);
        std::int64_t t = 0;
        for (const Row& row : rows) {
            for (std::int32_t p = row.begin; p < row.end; ++p, ++t) {
                for (std::int64_t c = 0; c < queries->num_cols(); ++c)
                    (*queries)(t, c) = row.request->queries(p, c);
            }
        }
    }

    void write(const Row& row, std::int32_t first_page, std::int32_t j) {
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

    AttentionArgs args(ActView out, std::int32_t window) {
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
            .scale = 1.f / std::sqrt(static_cast<float>(heads.D)),
        };
    }

    // Returns the op's output, [T, Q*D].
    Matrix<float> run(
        const Ops& ops, Stream stream, std::int32_t window, bool has_workspace = true
    ) {
        Matrix<float> out(queries->num_rows(), queries->num_cols(), 0x22);
        AttentionArgs a = args(out.view(), window);
        Scratch scratch(ops.attention_workspace_bytes(
            {.num_tokens = out.num_rows(),
             .num_q_heads = heads.Q,
             .head_dim = heads.D,
             .kv_len_max = a.kv_len_max}
        ));
        if (has_workspace) a.workspace = scratch.workspace();
        a.stream = stream;
        ops.attention(a);
        return out;
    }

    std::vector<Row> rows;
    Heads heads;
    KvCache kv{};
    std::vector<T> memory{};
    std::vector<PageId> pages{};
    std::vector<std::int32_t> q_starts{}, kv_lens{}, page_starts{};
    std::unique_ptr<Matrix<T>> queries{};
};

class Attention : public OnLevel {
  protected:
    template <class T>
    void expect_reference(const Heads& heads, std::int32_t page_size, std::int32_t window);
};
PITSTOP_ON_EVERY_LEVEL(Attention);

template <class T>
void Attention::expect_reference(const Heads& heads, std::int32_t page_size, std::int32_t window) {
    SCOPED_TRACE(
        testing::Message() << "Q " << heads.Q << " K " << heads.K << " D " << heads.D << " P "
                           << page_size << " window " << window << " size " << sizeof(T)
    );
    const Request<T> a = make_request<T>(page_size * 3 + 1, heads, 1);
    const Request<T> b = make_request<T>(70, heads, 10);
    const Request<T> c = make_request<T>(1, heads, 20);
    const Request<T> d = make_request<T>(520, heads, 30);
    Batch<T> batch({{&a, 0, a.len}, {&b, 33, 70}, {&c, 0, 1}, {&d, 519, 520}}, heads, page_size, 5);
    Matrix<float> expected(batch.queries->num_rows(), batch.queries->num_cols(), 0x11);
    attention_ref(batch.args(expected.view(), window));
    const Matrix<float> actual = batch.run(ops(), stream_of(pool_), window);

    // A score errs by delta = |scale| * (linear's bound over D) + e|score|; a probability
    // relatively by 2 delta (its own and the sum's) plus exp's 2^-21 and, where it is a factor of
    // pairs, bf16's u; the sums over keys by e per block, segment and key in it. The output is an
    // average of values, so all of it times max |value|. |q| |k| <= its norms: a dot of D normal
    // numbers has sum of magnitudes below 6 sqrt(D) * sqrt(D) here.
    const double D = heads.D;
    const double score_magnitude = 6.0 * D / std::sqrt(D);
    const double delta = 2.0 * (D / 16.0 + 9.0) * kEps32 * score_magnitude + D * 0x1p-126;
    const double sums = (256.0 + 64.0 + 16.0) * 2.0 * kEps32;
    const double max_value = 6.0;  // of some 10^5 normal numbers
    const double probability = std::is_same_v<T, bf16> ? kEps16 : 0.0;
    const double bound = max_value * (2.0 * delta + probability + 0x1p-21 + sums);
    expect_within(actual, expected, [&](std::int64_t, std::int64_t) { return bound; });
}

TEST_P(Attention, MeetsTheReferenceOnAwkwardShapes) {
    for (const Heads& heads :
         {Heads{4, 2, 32},
          Heads{3, 3, 24},
          Heads{6, 2, 80},
          Heads{7, 1, 64},
          Heads{2, 1, 128},
          Heads{5, 5, 96},
          Heads{20, 1, 10},
          Heads{1, 1, 256}}) {
        for (const std::int32_t page_size : {1, 5, 16, 64}) {
            expect_reference<float>(heads, page_size, kNoWindow);
            expect_reference<bf16>(heads, page_size, kNoWindow);
        }
        for (const std::int32_t window : {1, 2, 63, 64, 65, 300}) {
            expect_reference<float>(heads, 16, window);
            expect_reference<bf16>(heads, 7, window);
        }
    }
}

// Compares every position of a request, once computed alone token by token, in other batches,
// chunks and pages.
template <class T>
void expect_same_bits(const Ops& ops, ThreadPool& pool, const Heads& heads, std::int32_t window) {
    SCOPED_TRACE(
        testing::Message() << "D " << heads.D << " window " << window << " size " << sizeof(T)
    );
    const std::int32_t len = 601;  // past two segments
    const Request<T> request = make_request<T>(len, heads, 3);
    const Request<T> other = make_request<T>(len, heads, 40);
    std::vector<std::string> alone;
    for (std::int32_t p = 0; p < len; p += (p < 70 ? 1 : 53)) {
        Batch<T> batch({{&request, p, p + 1}}, heads, 16, 1);
        alone.resize(static_cast<std::size_t>(p + 1));
        alone.back() = batch.run(ops, {}, window).bits(0);
    }
    std::mt19937 engine(9);
    const auto pick = [&](std::int32_t begin, std::int32_t end) {
        return begin + static_cast<std::int32_t>(engine() % static_cast<unsigned>(end - begin));
    };
    for (int round = 0; round < 12; ++round) {
        const std::int32_t page_size =
            std::vector{1, 3, 16, 64, 256}[static_cast<std::size_t>(pick(0, 5))];
        std::vector<typename Batch<T>::Row> rows;
        for (int before = pick(0, 3); before > 0; --before)
            rows.push_back({&other, 0, pick(1, 40)});
        const std::int32_t begin = round % 3 == 0 ? 0 : pick(0, len);
        const std::int32_t end = round % 4 == 3 ? begin + 1 : pick(begin + 1, len + 1);
        rows.push_back({&request, begin, end});
        for (int after = pick(0, 3); after > 0; --after)
            rows.push_back({&other, 500, 500 + pick(1, 9)});
        Batch<T> batch(rows, heads, page_size, static_cast<unsigned>(round));
        const auto row = static_cast<std::size_t>(
            &*std::find_if(
                batch.rows.begin(),
                batch.rows.end(),
                [&](const auto& r) { return r.request == &request; }
            ) -
            batch.rows.data()
        );
        const Matrix<float> out = batch.run(ops, stream_of(pool), window, round % 2 == 0);
        for (std::int32_t p = begin; p < end; ++p) {
            if (static_cast<std::size_t>(p) >= alone.size() ||
                alone[static_cast<std::size_t>(p)].empty())
                continue;
            ASSERT_EQ(out.bits(batch.q_starts[row] + p - begin), alone[static_cast<std::size_t>(p)])
                << "position " << p << " of [" << begin << ", " << end << "), pages of "
                << page_size;
        }
    }
}

TEST_P(Attention, P6_TokenDoesNotDependOnChunksPagesBatchOrThreads) {
    expect_same_bits<bf16>(ops(), pool_, {4, 2, 32}, kNoWindow);
    expect_same_bits<float>(ops(), pool_, {4, 2, 32}, kNoWindow);
    expect_same_bits<bf16>(ops(), pool_, {3, 1, 24}, 100);
    expect_same_bits<float>(ops(), pool_, {5, 1, 80}, 64);
}

// A later token whose key and value are infinite does not reach an earlier one of the same chunk.
TEST_P(Attention, LaterKeysAreNotReadByEarlierTokens) {
    const Heads heads{2, 1, 32};
    Request<float> request = make_request<float>(40, heads, 3);
    Batch<float> clean({{&request, 0, 40}}, heads, 8, 1);
    const Matrix<float> expected = clean.run(ops(), {}, kNoWindow);
    for (std::int64_t i = 0; i < 32; ++i) {
        request.keys(30, i) = std::numeric_limits<float>::infinity();
        request.values(30, i) = kNan;
    }
    Batch<float> poisoned({{&request, 0, 40}}, heads, 8, 1);
    const Matrix<float> actual = poisoned.run(ops(), {}, kNoWindow);
    for (std::int64_t t = 0; t < 30; ++t)
        EXPECT_EQ(actual.bits(t), expected.bits(t)) << "token " << t;
}

class Rope : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(Rope);

template <class X, class Kv>
void expect_rope(
    const Ops& ops, Stream stream, const Heads& heads, std::int32_t half, bool has_norm
) {
    SCOPED_TRACE(testing::Message() << "D " << heads.D << " R/2 " << half << " norm " << has_norm);
    const std::int64_t T = 9;
    const Matrix<X> q = random_matrix<X>(T, heads.Q * heads.D, 1);
    const Matrix<X> k = random_matrix<X>(T, heads.K * heads.D, 2);
    const Matrix<X> v = random_matrix<X>(T, heads.K * heads.D, 3);
    const Matrix<bf16> norm = random_matrix<bf16>(2, heads.D, 4);
    Matrix<float> cos(100, half, 0x7f);
    Matrix<float> sin(100, half, 0x7f);
    for (std::int64_t p = 0; p < 100; ++p) {
        for (std::int64_t i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(p) *
                std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
            cos(p, i) = static_cast<float>(std::cos(angle));
            sin(p, i) = static_cast<float>(std::sin(angle));
        }
    }
    const std::int32_t positions[T] = {0, 1, 2, 50, 99, 3, 4, 5, 6};
    const std::int64_t slots[T] = {7, 6, 13, 2, 20, 0, 1, 5, 8};  // pages of 3
    KvCache kv{
        .dtype = kDTypeOf<Kv>,
        .num_pages = 7,
        .page_size = 3,
        .num_kv_heads = heads.K,
        .head_dim = heads.D};
    Matrix<Kv> expected_kv(1, page_elements(kv) * kv.num_pages, 0x31);
    Matrix<Kv> actual_kv(1, page_elements(kv) * kv.num_pages, 0x31);
    Matrix<Kv> expected_q(T, heads.Q * heads.D, 0x11);
    Matrix<Kv> actual_q(T, heads.Q * heads.D, 0x22);
    RopeArgs args{
        .q = q.view(),
        .k = k.view(),
        .v = v.view(),
        .q_out = expected_q.view(),
        .kv = kv,
        .slots = slots,
        .positions = positions,
        .cos = cos.view(),
        .sin = sin.view(),
        .q_norm = has_norm ? &norm(0, 0) : nullptr,
        .k_norm = has_norm ? &norm(1, 0) : nullptr,
        .norm_eps = 1e-6f,
    };
    args.kv.data = &expected_kv(0, 0);
    rope_ref(args);
    args.kv.data = &actual_kv(0, 0);
    args.q_out = actual_q.view();
    args.stream = stream;
    ops.rope(args);
    // The norm errs as rmsnorm's, (D/16 + 12) e; a rotation is two products and a sum of numbers up
    // to 6 * 6 (weight times value, each normal), and may cancel, so the error is absolute.
    const double magnitude = (has_norm ? 36.0 : 6.0) * 1.5;
    const double roundings = (static_cast<double>(heads.D) / 16.0 + 16.0) * kEps32 * magnitude;
    const auto bound = [&](const Matrix<Kv>& m) {
        return [&](std::int64_t r, std::int64_t c) {
            return roundings + 2.02 * rounding_of(kDTypeOf<Kv>) * std::abs(m.value(r, c));
        };
    };
    expect_within(actual_q, expected_q, bound(expected_q));
    expect_within(actual_kv, expected_kv, bound(expected_kv));
}

TEST_P(Rope, MeetsTheReferenceOnAwkwardShapes) {
    for (const auto& [heads, half] :
         {std::pair{Heads{4, 2, 32}, 16},
          {Heads{3, 1, 24}, 12},
          {Heads{1, 1, 2}, 1},
          {Heads{6, 3, 80}, 40},
          {Heads{2, 1, 128}, 64},
          {Heads{2, 2, 96}, 24}}) {
        for (const bool has_norm : {false, true}) {
            expect_rope<float, float>(ops(), stream_of(pool_), heads, half, has_norm);
            expect_rope<float, bf16>(ops(), stream_of(pool_), heads, half, has_norm);
            expect_rope<bf16, bf16>(ops(), stream_of(pool_), heads, half, has_norm);
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
