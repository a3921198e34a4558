// Computes register tiles of kRows x kCols dot products. Each output has one accumulator of 16
// lanes over all of K, whatever the tile, so that the bits do not depend on the tile. The tile only
// decides how often a loaded vector is used.
//
// Included once per instruction set, like simd.h.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/linear.h"

#include <cstdint>

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

struct Bf16Products {  // x and w both bf16: pairs
    using X = bf16;
    static constexpr std::int64_t kStep = 32;
    using Vector = Bf16x32;
    PITSTOP_INLINE static Vector load_x(const X* p) { return load_pairs(p); }
    PITSTOP_INLINE static Vector load_x(const X* p, std::int64_t n) { return load_pairs(p, n); }
    PITSTOP_INLINE static Vector load_w(const bf16* p) { return load_pairs(p); }
    PITSTOP_INLINE static Vector load_w(const bf16* p, std::int64_t n) { return load_pairs(p, n); }
    PITSTOP_INLINE static F32x16 accumulate(F32x16 acc, Vector x, Vector w) {
        return dot_pairs(acc, x, w);
    }
};

struct F32Products {  // the truth mode: x in fp32, w converted
    using X = float;
    static constexpr std::int64_t kStep = 16;
    using Vector = F32x16;
    PITSTOP_INLINE static Vector load_x(const X* p) { return load(p); }
    PITSTOP_INLINE static Vector load_x(const X* p, std::int64_t n) { return load(p, n); }
    PITSTOP_INLINE static Vector load_w(const bf16* p) { return load(p); }
    PITSTOP_INLINE static Vector load_w(const bf16* p, std::int64_t n) { return load(p, n); }
    PITSTOP_INLINE static F32x16 accumulate(F32x16 acc, Vector x, Vector w) {
        return fma(x, w, acc);
    }
};

PITSTOP_INLINE float fp32_of(bf16 x) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

// Writes 16 outputs, or the first `num` of them, in runs of kRun adjacent ones. `places`: where
// each run begins in y; `cols`: its first output n.
template <int kRun>
PITSTOP_INLINE void finish(
    const LinearPart& part,
    LinearMode mode,
    const std::int64_t* places,
    const std::int64_t* cols,
    int num,
    F32x16 values
) {
    if (part.bias != nullptr) {
        alignas(64) float biases[kLanes] = {};
        for (int i = 0; i < num; ++i) biases[i] = fp32_of(part.bias[cols[i / kRun] + i % kRun]);
        values += load(biases);
    }
    if (part.y.dtype == DType::kF32) {
        alignas(64) float outputs[kLanes];
        store(outputs, values);
        for (int i = 0; i < num; i += kRun) {
            float* const y = static_cast<float*>(part.y.data) + places[i / kRun];
            for (int j = 0; j < kRun; ++j) {
                y[j] = mode == LinearMode::kAdd ? y[j] + outputs[i + j] : outputs[i + j];
            }
        }
    } else {
        alignas(32) std::uint16_t rounded[kLanes];
        store_u16(rounded, bf16_bits(values));
        for (int i = 0; i < num; i += kRun) {
            void* const y = static_cast<bf16*>(part.y.data) + places[i / kRun];
            __builtin_memcpy(y, rounded + i, kRun * sizeof(bf16));
        }
    }
}

// Returns how many outputs of a tile's row are written together: 1, 2 or a multiple of 4.
constexpr int run_of(int num_cols) { return num_cols < 4 ? (num_cols == 3 ? 1 : num_cols) : 4; }

// Writes a tile's outputs, sixteen at a time. Summing the lanes and rounding for one output at a
// time would cost a third of the time of the products at K = 1024.
template <int kRows, int kCols>
PITSTOP_INLINE void finish_tile(
    const LinearPart& part,
    LinearMode mode,
    std::int64_t m,
    std::int64_t n,
    const F32x16 (*acc)[kCols]  // [kRows, kCols]
) {
    constexpr int kOutputs = kRows * kCols;
    constexpr int kRun = run_of(kCols);
    constexpr int kWhole = kLanes / kRun * kRun;  // outputs of whole runs
#pragma GCC unroll 8
    for (int first = 0; first < kOutputs; first += kWhole) {
        const int num = kOutputs - first < kWhole ? kOutputs - first : kWhole;
        F32x16 tile[kLanes];
        for (int i = 0; i < kLanes; ++i) {  // repeats beyond `num`: the compiler adds each once
            const int output = first + i % num;
            tile[i] = acc[output / kCols][output % kCols];
        }
        std::int64_t places[kLanes];
        std::int64_t cols[kLanes];
        for (int i = 0; i < num; i += kRun) {
            cols[i / kRun] = n + (first + i) % kCols;
            places[i / kRun] = (m + (first + i) / kCols) * part.y.stride + cols[i / kRun];
        }
        finish<kRun>(part, mode, places, cols, num, sums(tile));
    }
}

// How many rows of w a tile fetches into L2 for a later tile: rows are too short for the hardware
// to recognize their pattern in time. A fetch beyond the end of w is harmless.
enum class Fetch : std::uint8_t { kNone, kOneRow, kTwoRows, kRowPerCol };
constexpr int fetched_by(Fetch fetch, int num_cols) {
    switch (fetch) {
        case Fetch::kNone:
            return 0;
        case Fetch::kOneRow:
            return 1;
        case Fetch::kTwoRows:
            return 2;
        case Fetch::kRowPerCol:
            return num_cols;
    }
    return 0;
}

// A part of all sums, [begin, end) of K. If rows of x do not fit into L1, sums are computed in
// several parts: between two parts a tile's accumulators are in memory, so no bit of a sum changes.
struct Depth {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool is_first = true;
    bool is_last = true;
};

// Computes outputs [m, m + kRows) x [n, n + kCols), or the part of their sums that `depth` selects.
template <class Products, int kRows, int kCols, Fetch kFetch, bool kInParts>
PITSTOP_INLINE void tile(
    const typename Products::X* x,  // [kRows, K], from row m
    std::int64_t x_stride,
    const LinearPart& part,
    LinearMode mode,
    std::int64_t m,
    std::int64_t n,
    Depth depth,
    const bf16* ahead,  // the first row of w to fetch
    float* waiting      // [kRows * kCols, kLanes] accumulators, if sums have several parts
) {
    const bf16* const w = part.w.data + n * part.w.stride;
    const std::int64_t w_stride = part.w.stride;
    F32x16 acc[kRows][kCols];
    if (!kInParts || depth.is_first) {
        for (int i = 0; i < kRows; ++i) {
            for (int j = 0; j < kCols; ++j) acc[i][j] = zero();
        }
    } else {
        for (int i = 0; i < kRows; ++i) {
            for (int j = 0; j < kCols; ++j) acc[i][j] = load(waiting + (i * kCols + j) * kLanes);
        }
    }
    std::int64_t k = depth.begin;
    for (; k + Products::kStep <= depth.end; k += Products::kStep) {
        typename Products::Vector w_k[kCols];
        for (int j = 0; j < kCols; ++j) {
            w_k[j] = Products::load_w(w + j * w_stride + k);
            if (j < fetched_by(kFetch, kCols))
                __builtin_prefetch(ahead + j * w_stride + k, /*rw=*/0, /*locality=*/2);
        }
        for (int i = 0; i < kRows; ++i) {
            const typename Products::Vector x_k = Products::load_x(x + i * x_stride + k);
            for (int j = 0; j < kCols; ++j)
                acc[i][j] = Products::accumulate(acc[i][j], x_k, w_k[j]);
        }
    }
    if (k < depth.end) {  // zeros in the lanes beyond K add nothing
        for (int i = 0; i < kRows; ++i) {
            const typename Products::Vector x_k =
                Products::load_x(x + i * x_stride + k, depth.end - k);
            for (int j = 0; j < kCols; ++j) {
                acc[i][j] = Products::accumulate(
                    acc[i][j], x_k, Products::load_w(w + j * w_stride + k, depth.end - k)
                );
            }
        }
    }
    if (!kInParts || depth.is_last) {
        finish_tile<kRows, kCols>(part, mode, m, n, acc);
        return;
    }
    for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kCols; ++j) store(waiting + (i * kCols + j) * kLanes, acc[i][j]);
    }
}

}  // namespace
}  // namespace pitstop::kernels::PITSTOP_ISA
