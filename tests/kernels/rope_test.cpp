// Tests rope against its reference: heads of many sizes, whole and half rotated, with and without
// the norm of queries and keys.
#include "tests/kernels/backend.h"

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

// A step's queries, keys and values, and where they go. A gap of elements lies between the heads of
// queries.
template <class X>
struct RopeInput {
    RopeInput(const RopeHeads& of, std::int32_t half, std::int32_t gap = 0)
        : heads(of),
          tables(half),
          q_head_stride(of.D + gap),
          q(random_matrix<X>(kTokens, of.Q * (of.D + gap) - gap, 1)),
          k(random_matrix<X>(kTokens, of.K * of.D, 2)),
          v(random_matrix<X>(kTokens, of.K * of.D, 3)),
          norm(random_matrix<bf16>(2, of.D, 4)) {}
    RopeHeads heads;
    RopeTables tables;
    std::int64_t q_head_stride;
    Matrix<X> q;        // [T, (Q - 1) * q_head_stride + D]
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
    Matrix<Kv> q;  // [T, Q * D]
    Matrix<Kv>
        kv;  // elements that no token writes are compared, too: both begin with the same garbage
};

// Runs `op` on the data at `place`.
template <class X, class Kv>
void run(
    void (*op)(const RopeArgs&),
    const RopeInput<X>& in,
    bool has_norm,
    RopeOutput<Kv>& out,
    Place place,
    float norm_offset = 0.f
) {
    const PlacedMatrix<X> q(in.q, place), k(in.k, place), v(in.v, place);
    const PlacedMatrix<Kv> q_out(out.q, place), kv(out.kv, place);
    const PlacedMatrix<float> cos(in.tables.cos, place), sin(in.tables.sin, place);
    const PlacedMatrix<bf16> norm(in.norm, place);
    const PlacedArray<std::int64_t> slots(in.slots, place);
    const PlacedArray<std::int32_t> positions(in.positions, place);
    RopeArgs args{
        .q = q.view(),
        .q_head_stride = in.q_head_stride == in.heads.D ? 0 : in.q_head_stride,
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
        .norm_offset = norm_offset,
        .norm_eps = 1e-6f,
        .stream = place.stream};
    args.kv.data = kv.view().data;
    op(args);
    q_out.fetch(out.q);
    kv.fetch(out.kv);
}

class Rope : public OnBackend {
  protected:
    template <class X, class Kv>
    void expect_reference(
        const RopeHeads& heads,
        std::int32_t half,
        bool has_norm,
        std::int32_t gap = 0,
        float norm_offset = 0.f
    ) {
        SCOPED_TRACE(
            testing::Message() << "D " << heads.D << " R/2 " << half << " norm " << has_norm
                               << " gap " << gap << " offset " << norm_offset
        );
        const RopeInput<X> in(heads, half, gap);
        RopeOutput<Kv> expected(heads, 0x11);
        RopeOutput<Kv> actual(heads, 0x22);
        run(rope_ref, in, has_norm, expected, Place{}, norm_offset);
        run(ops().rope, in, has_norm, actual, place(), norm_offset);
        // The norm errs as rmsnorm's, by (D/16 + 12) e relatively on the CPU, (D/32 + 14) e on a
        // GPU; a rotation is two products and a sum of numbers up to 6 * 6 (weight times value,
        // both normal; up to 6 * 4 in the batches for a GPU), and may cancel, so the error is
        // absolute.
        const double scale = has_norm ? (is_gpu() ? 48.0 : 54.0) : (is_gpu() ? 12.0 : 9.0);
        const double roundings = is_gpu() ? heads.D / 32.0 + 18.0 : heads.D / 16.0 + 16.0;
        const auto bound_of = [&](double value) {
            return scale * roundings * kEps32 + 2.02 * rounding_of(kDTypeOf<Kv>) * std::abs(value);
        };
        const auto expect = [&](const Matrix<Kv>& a, const Matrix<Kv>& e) {
            expect_within(a, e, [&](std::int64_t r, std::int64_t c) {
                return bound_of(e.value(r, c));
            });
        };
        expect(actual.q, expected.q);
        expect(actual.kv, expected.kv);
    }
};
PITSTOP_ON_BACKENDS(Rope, Order::kDefault);

TEST_P(Rope, MeetsTheReferenceOnAwkwardShapes) {
    for (const auto& [heads, half] :
         {std::pair{RopeHeads{4, 2, 128}, 64},
          {RopeHeads{4, 2, 128}, 32},  // half of the head is rotated
          {RopeHeads{6, 2, 64}, 32},
          {RopeHeads{37, 5, 64}, 32},
          {RopeHeads{3, 1, 256}, 128},
          {RopeHeads{5, 1, 80}, 40},
          {RopeHeads{2, 2, 96}, 24},
          {RopeHeads{4, 2, 32}, 16},
          {RopeHeads{3, 1, 24}, 12},
          {RopeHeads{2, 2, 6}, 3},
          {RopeHeads{1, 1, 2}, 1}}) {
        for (const bool has_norm : {false, true}) {
            expect_reference<float, float>(heads, half, has_norm);
            expect_reference<float, bf16>(heads, half, has_norm);
            expect_reference<bf16, bf16>(heads, half, has_norm);
            if (!has_norm) continue;
            expect_reference<float, float>(heads, half, has_norm, heads.D, /*norm_offset=*/1.f);
            expect_reference<bf16, bf16>(heads, half, has_norm, 3, /*norm_offset=*/1.f);
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
