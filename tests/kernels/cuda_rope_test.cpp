// Tests the CUDA rope against its reference: heads of many sizes, whole and half rotated, with and
// without the norm of queries and keys.
#include "tests/kernels/cuda_support.h"

#include <cmath>

namespace pitstop::kernels::test {
namespace {

constexpr std::int64_t kTokens = 9;
constexpr std::int64_t kPositions = 100;

struct RopeHeads {
    std::int32_t Q;
    std::int32_t K;
    std::int32_t D;
};

// [kPositions, half] of cosines and sines.
struct RopeTables {
    explicit RopeTables(std::int32_t half)
        : cos(kPositions, half, 0x7f), sin(kPositions, half, 0x7f) {
        for (std::int64_t p = 0; p < kPositions; ++p) {
            for (std::int64_t i = 0; i < half; ++i) {
                const double exponent = -static_cast<double>(i) / static_cast<double>(half);
                const double angle = static_cast<double>(p) * std::pow(10000.0, exponent);
                cos(p, i) = static_cast<float>(std::cos(angle));
                sin(p, i) = static_cast<float>(std::sin(angle));
            }
        }
    }
    Matrix<float> cos;
    Matrix<float> sin;
};

// A step's queries, keys and values, and where they go.
template <class X>
struct RopeInput {
    RopeInput(const RopeHeads& of, std::int32_t half)
        : heads(of),
          tables(half),
          q(random_matrix<X>(kTokens, of.Q * of.D, 1)),
          k(random_matrix<X>(kTokens, of.K * of.D, 2)),
          v(random_matrix<X>(kTokens, of.K * of.D, 3)),
          norm(random_matrix<bf16>(2, of.D, 4)) {}
    RopeHeads heads;
    RopeTables tables;
    Matrix<X> q;        // [T, Q * D]
    Matrix<X> k;        // [T, K * D]
    Matrix<X> v;        // [T, K * D]
    Matrix<bf16> norm;  // [2, D]: of queries, of keys
    std::vector<std::int32_t> positions{0, 1, 2, 50, 99, 3, 4, 5, 6};
    std::vector<std::int64_t> slots{7, 6, 13, 2, 20, 0, 1, 5, 8};
};

// Rotated queries, and the pages of a cache with the keys and values among them.
template <class Kv>
struct RopeOutput {
    RopeOutput(const RopeHeads& heads, unsigned char garbage)
        : cache{.dtype = kDTypeOf<Kv>, .num_pages = 7, .page_size = 3, .num_kv_heads = heads.K, .head_dim = heads.D},
          q(kTokens, heads.Q * heads.D, garbage),
          kv(1, page_elements(cache) * cache.num_pages, 0x31) {}
    KvCache cache;
    Matrix<Kv> q;   // [T, Q * D]
    Matrix<Kv> kv;  // the elements that no token goes to are compared, too: one garbage for all
};

template <class X, class Kv>
void run_reference(const RopeInput<X>& in, bool has_norm, RopeOutput<Kv>& out) {
    RopeArgs args{
        .q = in.q.view(),
        .k = in.k.view(),
        .v = in.v.view(),
        .q_out = out.q.view(),
        .kv = out.cache,
        .slots = in.slots.data(),
        .positions = in.positions.data(),
        .cos = in.tables.cos.view(),
        .sin = in.tables.sin.view(),
        .q_norm = has_norm ? &in.norm(0, 0) : nullptr,
        .k_norm = has_norm ? &in.norm(1, 0) : nullptr,
        .norm_eps = 1e-6f};
    args.kv.data = &out.kv(0, 0);
    rope_ref(args);
}

template <class X, class Kv>
void run_on_gpu(const RopeInput<X>& in, bool has_norm, RopeOutput<Kv>& out, Stream stream) {
    const OnDevice<X> q(in.q, stream), k(in.k, stream), v(in.v, stream);
    const OnDevice<Kv> q_out(out.q, stream), kv(out.kv, stream);
    const OnDevice<float> cos(in.tables.cos, stream), sin(in.tables.sin, stream);
    const OnDevice<bf16> norm(in.norm, stream);
    const DeviceArray<std::int64_t> slots(in.slots, stream);
    const DeviceArray<std::int32_t> positions(in.positions, stream);
    RopeArgs args{
        .q = q.view(),
        .k = k.view(),
        .v = v.view(),
        .q_out = q_out.view(),
        .kv = out.cache,
        .slots = slots.data(),
        .positions = positions.data(),
        .cos = cos.view(),
        .sin = sin.view(),
        .q_norm = has_norm ? norm.view().data : nullptr,
        .k_norm = has_norm ? norm.view().data + norm.view().stride : nullptr,
        .norm_eps = 1e-6f,
        .stream = stream};
    args.kv.data = kv.view().data;
    rope_cuda(args);
    q_out.fetch(out.q);
    kv.fetch(out.kv);
}

class CudaRope : public OnCuda {
  protected:
    template <class X, class Kv>
    void expect_reference(const RopeHeads& heads, std::int32_t half, bool has_norm) {
        SCOPED_TRACE(
            testing::Message() << "D " << heads.D << " R/2 " << half << " norm " << has_norm
        );
        const RopeInput<X> in(heads, half);
        RopeOutput<Kv> expected(heads, 0x11);
        RopeOutput<Kv> actual(heads, 0x22);
        run_reference(in, has_norm, expected);
        run_on_gpu(in, has_norm, actual, stream());
        // The norm errs by (D/32 + 14) e relatively; a rotation is two products and a sum of
        // numbers up to 6 * 4 (a normal number times a normal weight).
        const double scale = has_norm ? 24.0 : 6.0;
        const double bound = scale * 2.0 * (heads.D / 32.0 + 18.0) * kEps32;
        const auto bound_of = [&](double value) {
            return bound + 2.02 * rounding_of(kDTypeOf<Kv>) * std::abs(value);
        };
        expect_within(actual.q, expected.q, [&](std::int64_t r, std::int64_t c) {
            return bound_of(expected.q.value(r, c));
        });
        for (std::int64_t i = 0; i < expected.kv.num_cols(); ++i) {
            const double value = expected.kv.value(0, i);
            if (std::isnan(value)) continue;  // the garbage
            ASSERT_NEAR(actual.kv.value(0, i), value, bound_of(value)) << "KV element " << i;
        }
    }
};

TEST_F(CudaRope, MeetsTheReferenceOnAwkwardShapes) {
    for (const bool has_norm : {false, true}) {
        expect_reference<bf16, bf16>({4, 2, 128}, 64, has_norm);
        expect_reference<float, bf16>({4, 2, 128}, 64, has_norm);
        expect_reference<float, bf16>({6, 2, 64}, 32, has_norm);
        expect_reference<bf16, bf16>({3, 1, 256}, 128, has_norm);
        expect_reference<float, bf16>({37, 5, 64}, 32, has_norm);
        expect_reference<float, float>({4, 2, 128}, 64, has_norm);
        expect_reference<float, bf16>({4, 2, 128}, 32, has_norm);  // half of the head is rotated
        expect_reference<bf16, bf16>({5, 1, 80}, 40, has_norm);
        expect_reference<float, float>({2, 2, 6}, 3, has_norm);
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
