// Infinities and NaNs reach the logits, where they are counted: no op turns them into healthy
// numbers, and they reach no other row.
#include "kernels/draws.h"
#include "tests/kernels/attention_batch.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

template <class T>
bool is_finite(const Matrix<T>& m, std::int64_t r, std::int64_t c) {
    return std::isfinite(m.value(r, c));
}

template <class T>
T number(double value) {
    return from_double<T>(value);
}

// ---- rmsnorm ----

class RmsNormNotFinite : public OnBackend {
  protected:
    // `spoil` makes rows 1, 3 and 5 overflow; the others have the bits that they have alone.
    template <class Y>
    void expect_marked(std::int64_t H, bool has_delta, float value) {
        SCOPED_TRACE(testing::Message() << "H " << H << " delta " << has_delta << " " << value);
        const Matrix<bf16> w = random_matrix<bf16>(1, H, 3);
        Matrix<float> x = random_matrix<float>(7, H, 1);
        const Matrix<float> clean = x;
        Matrix<float> delta(7, H, 0);
        for (const std::int64_t t : {1, 3, 5}) {
            Matrix<float>& of = has_delta ? delta : x;
            of(t, t == 1 ? 0 : t == 3 ? H / 2 : H - 1) = value;
        }
        const auto run = [&](const Matrix<float>& rows, bool adds, Matrix<Y>& y_of) {
            const auto device_x = put(rows);
            const auto device_delta = put(delta);
            const auto device_w = put(w);
            const auto y = put(y_of);
            const auto marks = put(std::vector<std::uint8_t>(7, 9));
            ops().rmsnorm(
                {.x = device_x.view(),
                 .delta = adds ? View2<const float>(device_delta.view()) : View2<const float>{},
                 .w = device_w.view().data,
                 .y = y.view(),
                 .eps = 1e-6f,
                 .marks = marks.data(),
                 .stream = stream()}
            );
            y.fetch(y_of);
            return marks.fetch();
        };
        Matrix<Y> expected(7, H, 0x11);
        Matrix<Y> actual(7, H, 0x22);
        EXPECT_EQ(run(clean, false, expected), std::vector<std::uint8_t>(7, 0));
        EXPECT_EQ(run(x, has_delta, actual), (std::vector<std::uint8_t>{0, 1, 0, 1, 0, 1, 0}));
        for (std::int64_t t = 0; t < 7; ++t) {
            if (t % 2 == 0) {
                EXPECT_EQ(actual.bits(t), expected.bits(t)) << "row " << t;
                continue;
            }
            for (std::int64_t i = 0; i < H; ++i)
                EXPECT_TRUE(std::isnan(actual.value(t, i))) << "row " << t << " element " << i;
        }
    }
};
PITSTOP_ON_BACKENDS(RmsNormNotFinite, Order::kDefault);

TEST_P(RmsNormNotFinite, ARowWhoseSquaresOverflowIsNanAndMarkedAndNoOther) {
    for (const std::int64_t H : {1, 15, 64, 100, 1024, 4099, 8192}) {
        for (const float value : {1e20f, -2e19f, kMax, kInf, -kInf, kNan}) {
            for (const bool has_delta : {false, true}) {
                expect_marked<float>(H, has_delta, value);
                expect_marked<bf16>(H, has_delta, value);
            }
        }
    }
}

TEST(RmsNormNotFinite, TheReferenceSaysTheSame) {
    Matrix<float> x(2, 4, 0);
    x(1, 2) = 1e20f;
    const Matrix<bf16> w = random_matrix<bf16>(1, 4, 1);
    Matrix<float> y(2, 4, 0x11);
    std::vector<std::uint8_t> marks(2, 9);
    rmsnorm_ref({.x = x.view(), .w = &w(0, 0), .y = y.view(), .eps = 1e-6f, .marks = marks.data()});
    EXPECT_EQ(marks, (std::vector<std::uint8_t>{0, 1}));
    for (std::int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(y(0, i), 0.f);
        EXPECT_TRUE(std::isnan(y(1, i)));
    }
}

// ---- rope ----

class RopeNotFinite : public OnBackend {
  protected:
    struct Out {
        Matrix<bf16> q;
        std::vector<float> keys{};    // [T * D]
        std::vector<float> values{};  // [T * D]
    };
    // Runs rope for T tokens with one head of queries and one of keys; token t is in page t.
    template <class Kv>
    Out rope_of(
        const Matrix<float>& q, const Matrix<float>& k, const Matrix<float>& v, bool has_norm
    ) {
        const std::int64_t T = q.num_rows();
        const auto D = static_cast<std::int32_t>(q.num_cols());
        const KvCache cache{
            .dtype = kDTypeOf<Kv>,
            .num_pages = static_cast<std::int32_t>(T),
            .page_size = 1,
            .num_kv_heads = 1,
            .head_dim = D};
        Out out{.q = Matrix<bf16>(T, D, 0x22)};
        Matrix<float> cos(T, D / 2, 0);
        Matrix<float> sin(T, D / 2, 0);
        for (std::int64_t t = 0; t < T; ++t) {
            for (std::int64_t i = 0; i < D / 2; ++i) cos(t, i) = 1.f;
        }
        std::vector<std::int64_t> slots;
        std::vector<std::int32_t> positions;
        for (std::int64_t t = 0; t < T; ++t) {
            slots.push_back(t);
            positions.push_back(static_cast<std::int32_t>(t));
        }
        const Matrix<bf16> norm = random_matrix<bf16>(2, D, 4);
        const auto device_q = put(q);
        const auto device_k = put(k);
        const auto device_v = put(v);
        const auto q_out = put(out.q);
        // The page's elements lie back to back.
        std::vector<Kv> memory(static_cast<std::size_t>(T * 2 * D), number<Kv>(7));
        const auto device_kv = put(memory);
        const auto device_cos = put(cos);
        const auto device_sin = put(sin);
        const auto device_slots = put(slots);
        const auto device_positions = put(positions);
        const auto device_norm = put(norm);
        RopeArgs args{
            .q = device_q.view(),
            .k = device_k.view(),
            .v = device_v.view(),
            .q_out = q_out.view(),
            .kv = cache,
            .slots = device_slots.data(),
            .positions = device_positions.data(),
            .cos = device_cos.view(),
            .sin = device_sin.view(),
            .q_norm = has_norm ? device_norm.view().data : nullptr,
            .k_norm = has_norm ? device_norm.view().data + device_norm.view().stride : nullptr,
            .norm_eps = 1e-6f,
            .stream = stream()};
        args.kv.data = device_kv.data();
        ops().rope(args);
        q_out.fetch(out.q);
        const std::vector<Kv> all = device_kv.fetch();
        for (std::int64_t t = 0; t < T; ++t) {
            for (std::int64_t i = 0; i < 2 * D; ++i) {
                const double value = element(all.data(), kDTypeOf<Kv>, t * 2 * D + i);
                (i < D ? out.keys : out.values).push_back(static_cast<float>(value));
            }
        }
        return out;
    }

    template <class Kv>
    void expect_kept(std::int32_t D) {
        SCOPED_TRACE(testing::Message() << "D " << D << " size " << sizeof(Kv));
        const Matrix<float> clean = random_matrix<float>(5, D, 1);
        const Out expected = rope_of<Kv>(clean, clean, clean, /*has_norm=*/false);
        Matrix<float> k = clean;
        k(1, 0) = kInf;
        k(2, D - 1) = -kInf;
        k(3, D / 2) = kNan;
        if (sizeof(Kv) == 2) k(4, 1) = 0x1.ffp127f;  // rounds to an infinity
        const Out actual = rope_of<Kv>(clean, k, clean, /*has_norm=*/false);
        EXPECT_EQ(actual.q.bits(), expected.q.bits());
        EXPECT_EQ(actual.values, expected.values);
        for (std::int64_t t = 0; t < 5; ++t) {
            const bool is_clean = t == 0 || (t == 4 && sizeof(Kv) == 4);
            int num_nan = 0;
            for (std::int64_t i = 0; i < D; ++i) {
                const float key = actual.keys[static_cast<std::size_t>(t * D + i)];
                EXPECT_FALSE(std::isinf(key)) << "token " << t << " element " << i;
                num_nan += std::isnan(key) ? 1 : 0;
            }
            EXPECT_EQ(num_nan > 0, !is_clean) << "token " << t;
        }
    }
};
PITSTOP_ON_BACKENDS(RopeNotFinite, Order::kDefault);

TEST_P(RopeNotFinite, AnInfiniteKeyIsKeptAsNan) {
    for (const std::int32_t D : {6, 32, 64, 128}) {
        expect_kept<bf16>(D);
        expect_kept<float>(D);
    }
}

TEST_P(RopeNotFinite, AHeadWhoseSquaresOverflowIsNanWhereItIsNormed) {
    for (const std::int32_t D : {6, 32, 64, 128}) {
        SCOPED_TRACE(D);
        Matrix<float> x = random_matrix<float>(3, D, 1);
        const Matrix<float> v = random_matrix<float>(3, D, 2);
        x(1, D / 3) = 3e19f;
        const Out out = rope_of<bf16>(x, x, v, /*has_norm=*/true);
        for (std::int64_t t = 0; t < 3; ++t) {
            for (std::int64_t i = 0; i < D; ++i) {
                EXPECT_EQ(std::isnan(out.q.value(t, i)), t == 1) << t << " " << i;
                EXPECT_EQ(std::isnan(out.keys[static_cast<std::size_t>(t * D + i)]), t == 1);
            }
        }
    }
}

// ---- attention ----

class AttentionNotFinite : public OnBackend {
  protected:
    // A request of `len` tokens, one of them spoiled, in a batch with another request. From the
    // spoiled position on, no token of the first request is finite. Earlier tokens, and the other
    // request, keep their bits. A GPU's tensor cores multiply the values of a tile also by the
    // zeros of earlier tokens: there, a spoiled value may reach all tokens of its own request.
    template <class T>
    void expect_spread(
        const Heads& heads,
        std::int32_t len,
        std::int32_t begin,
        std::int32_t at,
        const std::function<void(Request<T>&)>& spoil,
        bool all_elements
    ) {
        Request<T> request = make_request<T>(len, heads, 3);
        const Request<T> other = make_request<T>(len, heads, 9);
        const AttentionOp op = attention_of(ops());
        const auto run = [&] {
            const std::vector<Span<T>> rows{{&request, begin, len}, {&other, begin, len}};
            return Batch<T>(rows, heads, 16, kNoWindow, 1).run(op, place());
        };
        const Matrix<float> expected = run();
        spoil(request);
        const Matrix<float> actual = run();
        const std::int64_t num = len - begin;
        for (std::int64_t t = 0; t < 2 * num; ++t) {
            if (is_gpu() && !all_elements && t < num && begin + t < at) continue;
            if (t >= num || begin + t < at) {
                EXPECT_EQ(actual.bits(t), expected.bits(t)) << "token " << t;
                continue;
            }
            const std::int64_t group = heads.Q / heads.K * heads.D;  // the first KV head's outputs
            std::int64_t num_bad = 0;
            for (std::int64_t i = 0; i < group; ++i) num_bad += is_finite(actual, t, i) ? 0 : 1;
            EXPECT_TRUE(all_elements ? num_bad == group : num_bad > 0)
                << "token " << t << ": " << num_bad << " of " << group;
        }
    }

    template <class T>
    void expect_all(const Heads& heads) {
        const T nan = number<T>(kNan);
        const T inf = number<T>(kInf);
        std::vector<std::pair<std::int32_t, std::int32_t>> rows{{1, 0}, {70, 66}, {70, 69}};
        if (!is_small()) rows = {{1, 0}, {70, 0}, {300, 299}, {600, 590}};
        for (const auto& [len, begin] : rows) {
            for (const std::int32_t at : {len / 3, len - 1}) {
                if (is_small() && at != len - 1 && begin != len - 1) continue;
                SCOPED_TRACE(testing::Message() << len << " from " << begin << ", at " << at);
                expect_spread<T>(
                    heads, len, begin, at, [&](Request<T>& r) { r.keys(at, 1) = nan; }, true
                );
                expect_spread<T>(
                    heads, len, begin, at, [&](Request<T>& r) { r.values(at, 0) = nan; }, false
                );
                expect_spread<T>(
                    heads, len, begin, at, [&](Request<T>& r) { r.values(at, 0) = inf; }, false
                );
            }
        }
    }
};
PITSTOP_ON_BACKENDS(AttentionNotFinite, Order::kEvery);

TEST_P(AttentionNotFinite, AnInfiniteKeyOrValueReachesEveryLaterTokenAndNoOther) {
    expect_all<bf16>({4, 1, 64});
    if (!is_small()) expect_all<bf16>({2, 2, 128});
    expect_all<bf16>({2, 1, 32});
    expect_all<float>({2, 1, 24});
}

// A query may have only its own token, and all its scores may be -inf.
TEST_P(AttentionNotFinite, AQueryThatIsNotFiniteSpoilsItsOwnToken) {
    const auto expect = [&]<class T>(const Heads& heads) {
        for (const float value : {kNan, kInf, -kInf}) {
            for (const std::int32_t begin : {0, 39}) {
                SCOPED_TRACE(testing::Message() << value << " D " << heads.D << " from " << begin);
                Request<T> request = make_request<T>(40, heads, 3);
                const auto run = [&] {
                    const std::vector<Span<T>> rows{{&request, begin, 40}};
                    return Batch<T>(rows, heads, 16, kNoWindow, 1)
                        .run(attention_of(ops()), place());
                };
                const Matrix<float> expected = run();
                for (std::int64_t j = 0; j < 40; ++j) request.keys(j, 0) = number<T>(0.5);
                request.queries(39, 0) = number<T>(value);
                const Matrix<float> actual = run();
                for (std::int64_t i = 0; i < heads.D; ++i)
                    EXPECT_FALSE(is_finite(actual, 39 - begin, i)) << i;
                EXPECT_TRUE(is_finite(actual, 39 - begin, heads.D)) << "another head";
                for (std::int64_t t = begin; t < 39; ++t)
                    EXPECT_TRUE(is_finite(actual, t - begin, 0)) << "token " << t;
            }
        }
    };
    expect.operator()<bf16>({4, 1, 64});
    expect.operator()<bf16>({4, 1, 128});
    expect.operator()<bf16>({2, 1, 32});
    expect.operator()<float>({2, 1, 24});
}

// ---- products and the gate ----

class ProductNotFinite : public OnBackend {
  protected:
    template <class X, class Y>
    void expect_rows(std::int64_t M, std::int64_t N, std::int64_t K, float value) {
        SCOPED_TRACE(testing::Message() << M << " x " << N << " x " << K << " " << value);
        Matrix<X> x = random_matrix<X>(M, K, 1);
        Matrix<bf16> w = random_matrix<bf16>(N, K, 2);
        for (std::int64_t n = 0; n < N; n += 3) w(n, K / 2) = to_bf16(0.f);
        x(M / 2, K / 2) = number<X>(value);
        Matrix<Y> actual(M, N, 0x22);
        const auto device_x = put(x);
        const auto device_w = put(w);
        const auto y = put(actual);
        const Scratch space = scratch(ops().linear_workspace_bytes());
        const LinearPart part{.w = device_w.view(), .y = y.view()};
        ops().linear(
            {.x = device_x.view(),
             .parts = {&part, 1},
             .workspace = space.workspace(),
             .stream = stream()}
        );
        y.fetch(actual);
        for (std::int64_t m = 0; m < M; ++m) {
            for (std::int64_t n = 0; n < N; ++n)
                EXPECT_EQ(is_finite(actual, m, n), m != M / 2) << m << " " << n;
        }
    }
};
PITSTOP_ON_BACKENDS(ProductNotFinite, Order::kEvery);

TEST_P(ProductNotFinite, AnInfiniteInputReachesEveryOutputOfItsRowAndNoOther) {
    for (const float value : {kNan, kInf, -kInf}) {
        for (const std::int64_t M : {1, 3, 17, 70}) {
            expect_rows<bf16, float>(M, 33, 72, value);
            expect_rows<bf16, bf16>(M, 66, 128, value);
            expect_rows<float, float>(M, 9, 31, value);
        }
    }
}

TEST_P(ProductNotFinite, WhatOverflowsIsInfinite) {
    Matrix<bf16> x(2, 64, 0);
    Matrix<bf16> w(3, 64, 0);
    for (std::int64_t k = 0; k < 64; ++k) {
        x(1, k) = to_bf16(1e30f);
        for (std::int64_t n = 0; n < 3; ++n) w(n, k) = to_bf16(1e20f);
    }
    Matrix<float> actual(2, 3, 0x22);
    const auto device_x = put(x);
    const auto device_w = put(w);
    const auto y = put(actual);
    const Scratch space = scratch(ops().linear_workspace_bytes());
    const LinearPart part{.w = device_w.view(), .y = y.view()};
    ops().linear(
        {.x = device_x.view(),
         .parts = {&part, 1},
         .workspace = space.workspace(),
         .stream = stream()}
    );
    y.fetch(actual);
    for (std::int64_t n = 0; n < 3; ++n) {
        EXPECT_EQ(actual(0, n), 0.f);
        EXPECT_FALSE(is_finite(actual, 1, n));
    }
}

TEST_P(ProductNotFinite, TheGateKeepsWhatIsNotFinite) {
    const std::vector<std::pair<float, float>> bad{
        {kNan, 1.f},
        {kInf, 1.f},
        {-kInf, 1.f},
        {kInf, 0.f},
        {-kInf, 0.f},
        {1.f, kNan},
        {1.f, kInf},
        {-1.f, -kInf},
        {0.f, kInf},
        {kInf, -kInf}};
    const auto F = static_cast<std::int64_t>(2 * bad.size());
    Matrix<float> gate(1, F, 0);
    Matrix<float> up(1, F, 0);
    for (std::size_t i = 0; i < bad.size(); ++i) {
        const auto c = static_cast<std::int64_t>(2 * i);
        gate(0, c) = bad[i].first;
        up(0, c) = bad[i].second;
        gate(0, c + 1) = up(0, c + 1) = 1.f;
    }
    Matrix<float> actual(1, F, 0x22);
    const auto device_gate = put(gate);
    const auto device_up = put(up);
    const auto y = put(actual);
    ops().silu_mul(
        {.gate = device_gate.view(), .up = device_up.view(), .y = y.view(), .stream = stream()}
    );
    y.fetch(actual);
    for (std::int64_t i = 0; i < F; ++i) EXPECT_EQ(is_finite(actual, 0, i), i % 2 == 1) << i;
}

// ---- draws ----

class DrawsNotFinite : public OnBackend {};
PITSTOP_ON_BACKENDS(DrawsNotFinite, Order::kDefault);

// A temperature or an edit turns a finite logit into an infinity. The draw reports it, with
// truncation or without; the count of logits that are not finite omits it.
TEST_P(DrawsNotFinite, AnInfiniteScoreIsNoDraw) {
    constexpr std::int64_t V = 300;
    constexpr std::int64_t R = 6;
    Matrix<float> logits = random_matrix<float>(R, V, 1);
    std::vector<SampleRow> draws(R, {.temperature = 1.f, .seed = 3});
    logits(0, 100) = logits(1, 100) = 1e37f;
    logits(1, 200) = 2e37f;
    draws[0].temperature = draws[1].temperature = 0.01f;
    draws[1].top_p = 0.5f;
    logits(2, 40) = kInf;  // an edit may make a logit infinite
    logits(3, 40) = kInf;
    draws[3].temperature = 0.f;
    for (std::int64_t i = 0; i < V; ++i) logits(4, i) = -kInf;
    const auto device_logits = put(logits);
    const auto device_draws = put(draws);
    const auto choices = put(std::vector<Choice>(R));
    const Scratch space = scratch(ops().sample_workspace_bytes(R, V));
    const auto arrivals = put(std::vector<std::uint32_t>(SampleArgs::kArrivals));
    ops().sample(
        {.logits = device_logits.view(),
         .rows = device_draws.data(),
         .choices = choices.data(),
         .workspace = space.workspace(),
         .arrivals = arrivals.data(),
         .stream = stream()}
    );
    std::vector<DrawnRow> rows;
    for (std::int64_t r = 0; r < R; ++r) rows.push_back({.choice = choices.data() + r});
    const auto device_rows = put(rows);
    std::vector<std::int32_t> counts(R, 0);
    const auto device_counts = put(counts);
    const auto ids = put(std::vector<TokenId>(R, TokenId{-9}));
    ops().note_draws(
        {.rows = device_rows.data(),
         .num_nonfinite = device_counts.data(),
         .num_rows = R,
         .ids = ids.data(),
         .stream = stream()}
    );
    const std::vector<TokenId> got = ids.fetch();
    for (const std::size_t r : {0u, 1u, 2u, 3u}) EXPECT_EQ(got[r], kScoreNotFinite) << r;
    EXPECT_EQ(got[4], kDrewNothing);
    EXPECT_GE(raw(got[5]), 0);
}

}  // namespace
}  // namespace pitstop::kernels::test
