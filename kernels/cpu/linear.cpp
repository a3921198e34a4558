// Computes register tiles of kRows x kCols dot products: each output has one accumulator of 16
// lanes over all of K, whatever the tile, so that the bits do not depend on it. What the tile
// decides is how often a loaded vector is used.
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// Rows of x and rows of w per tile. Accumulators, plus the w row that is being used, plus one of x,
// must fit into the registers: 32 zmm, or 16 ymm of which a vector takes two.
#if defined(__AVX512F__)
constexpr int kTileRows = 6;
constexpr int kTileCols = 4;
constexpr int kDecodeCols =
    8;  // for one or two rows: more chains, to cover the latency of the sums
#else
constexpr int kTileRows = 2;
constexpr int kTileCols = 2;
constexpr int kDecodeCols = 4;
#endif
constexpr std::int64_t kTilesAhead = 2;  // how far the first pass over w fetches
constexpr std::int64_t kColsAlign = 8;  // of a range of outputs: a multiple of every tile's columns

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

// Writes 16 outputs, or the first `num` of them, which lie in runs of kRun side by side: `places`
// has where each run begins in y, `cols` its first output n.
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

// The outputs of a tile's row that are written together: of 1, 2 or a multiple of 4.
constexpr int run_of(int num_cols) { return num_cols < 4 ? num_cols : 4; }

// Writes a tile's outputs, sixteen at a time: one by one, their sums over the lanes and their
// rounding cost a third of the products where K is 1024.
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
        for (int i = 0; i < kLanes; ++i) {  // copies past `num`: the compiler adds each but once
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

// Says how many rows of w a tile fetches into L2 that a later one will need: rows are too short for
// the hardware to see their pattern in time. A fetch past the end of w is harmless.
enum class Fetch : std::uint8_t { kNone, kOneRow, kRowPerCol };
constexpr int fetched_by(Fetch fetch, int num_cols) {
    if (fetch == Fetch::kNone) return 0;
    return fetch == Fetch::kOneRow ? 1 : num_cols;
}

// Computes outputs [m, m + kRows) x [n, n + kCols).
template <class Products, int kRows, int kCols, Fetch kFetch>
PITSTOP_INLINE void tile(
    const typename Products::X* x,  // [kRows, K], from row m
    std::int64_t x_stride,
    const LinearPart& part,
    LinearMode mode,
    std::int64_t m,
    std::int64_t n,
    std::int64_t K,
    const bf16* ahead  // the first row of w that it fetches
) {
    const bf16* const w = part.w.data + n * part.w.stride;
    const std::int64_t w_stride = part.w.stride;
    F32x16 acc[kRows][kCols];
    for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kCols; ++j) acc[i][j] = zero();
    }
    std::int64_t k = 0;
    for (; k + Products::kStep <= K; k += Products::kStep) {
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
    if (k < K) {  // zeros in the lanes past K add nothing
        for (int i = 0; i < kRows; ++i) {
            const typename Products::Vector x_k = Products::load_x(x + i * x_stride + k, K - k);
            for (int j = 0; j < kCols; ++j) {
                acc[i][j] = Products::accumulate(
                    acc[i][j], x_k, Products::load_w(w + j * w_stride + k, K - k)
                );
            }
        }
    }
    finish_tile<kRows, kCols>(part, mode, m, n, acc);
}

// Walks a strip of some rows along outputs [n_begin, n_end) of one part, and fetches rows of w from
// `ahead` on, which it moves past them.
struct Strip {
    const LinearArgs& args;
    const LinearPart& part;
    std::int64_t m;
    std::int64_t n_begin;
    std::int64_t n_end;

    template <class Products, int kRows, int kCols, Fetch kFetch>
    void walk(std::int64_t& ahead) const {
        const auto* const x =
            static_cast<const typename Products::X*>(args.x.data) + m * args.x.stride;
        std::int64_t n = n_begin;
        for (; n + kCols <= n_end; n += kCols, ahead += fetched_by(kFetch, kCols)) {
            const bf16* const row = part.w.data + ahead * part.w.stride;
            tile<Products, kRows, kCols, kFetch>(
                x, args.x.stride, part, args.mode, m, n, args.x.cols, row
            );
        }
        for (; n < n_end; ++n) {
            tile<Products, kRows, 1, Fetch::kNone>(
                x, args.x.stride, part, args.mode, m, n, args.x.cols, nullptr
            );
        }
    }

    // Walks as many of `rows` rows as there is a tile for; returns how many.
    template <class Products, Fetch kFetch>
    std::int64_t walk_any(std::int64_t rows, std::int64_t& ahead) const {
        if (rows >= kTileRows) {
            walk<Products, kTileRows, kTileCols, kFetch>(ahead);
            return kTileRows;
        }
        if (kTileRows > 4 && rows >= 4) {
            walk<Products, 4, kTileCols, kFetch>(ahead);
            return 4;
        }
        if (kTileRows > 2 && rows >= 2) {
            walk<Products, 2, kDecodeCols, kFetch>(ahead);
            return 2;
        }
        walk<Products, 1, kDecodeCols, kFetch>(ahead);
        return 1;
    }
};

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
}

constexpr std::int64_t kBlockBytes = 128 << 10;  // of w: with the next block a quarter of L2

// Outputs of a block, whose rows of w stay in L2 from one strip to the next.
std::int64_t block_cols(std::int64_t K) {
    const std::int64_t cols = kBlockBytes / (K * 2) / kColsAlign * kColsAlign;
    return cols < kColsAlign ? kColsAlign : cols;
}

// Computes outputs [m_begin, m_end) x [n_begin, n_end), block by block. Memory is read all the
// while: the strips of one block fetch the next one's rows between them. Only what comes first is
// fetched by the strip that needs it, as is everything where there is one strip.
template <class Products>
void rectangle(
    const LinearArgs& args,
    const LinearPart& part,
    std::int64_t m_begin,
    std::int64_t m_end,
    std::int64_t n_begin,
    std::int64_t n_end
) {
    const std::int64_t block = block_cols(args.x.cols);
    std::int64_t ahead = n_begin + kTilesAhead * kTileCols;  // rows of w before it are fetched
    for (std::int64_t n = n_begin; n < n_end; n += block) {
        const std::int64_t n_next = n + block < n_end ? n + block : n_end;
        const std::int64_t fetch_end = n_next + block < n_end ? n_next + block : n_end;
        for (std::int64_t m = m_begin; m < m_end;) {
            const Strip strip{args, part, m, n, n_next};
            const std::int64_t rows = m_end - m;
            const std::int64_t by_one_row = div_up(rows, kTileRows) * (n_next - n) / kTileCols;
            if (ahead < n_next || (ahead < fetch_end && by_one_row < fetch_end - ahead)) {
                m += strip.walk_any<Products, Fetch::kRowPerCol>(rows, ahead);
            } else if (ahead < fetch_end) {
                m += strip.walk_any<Products, Fetch::kOneRow>(rows, ahead);
            } else {
                m += strip.walk_any<Products, Fetch::kNone>(rows, ahead);
            }
        }
    }
}

// Says how the outputs are cut into rectangles; this decides speed, never bits.
struct Cut {
    std::int64_t n_size;  // outputs of one rectangle, a multiple of kColsAlign
    std::int64_t m_size;  // rows of one
    std::int64_t m_cuts;
};

Cut choose_cut(const LinearArgs& args, std::int64_t num_outputs) {
    constexpr std::int64_t kBlocksMax = 8;  // of a rectangle: the first one's w is waited for
    constexpr std::int64_t kProductsMin =
        128 << 10;  // per rectangle: some 5 us, worth waking a thread for
    constexpr std::int64_t kRectanglesPerThread =
        4;  // so that a slow thread costs a quarter at most
    const std::int64_t K = args.x.cols;
    const std::int64_t M = args.x.rows;
    const std::int64_t wanted = num_threads_of(args.stream) * kRectanglesPerThread;
    const std::int64_t products_cols = div_up(kProductsMin, K * M > 0 ? K * M : 1);
    const std::int64_t balanced = div_up(num_outputs, wanted);
    const std::int64_t fits = kBlocksMax * block_cols(K);
    std::int64_t n_size = balanced < fits ? balanced : fits;
    n_size = n_size > products_cols ? n_size : products_cols;
    n_size = div_up(clamp(n_size, 1, num_outputs), kColsAlign) * kColsAlign;
    std::int64_t m_cuts = 1;
    const std::int64_t n_cuts = div_up(num_outputs, n_size);
    while (n_cuts * m_cuts < wanted && M / (2 * m_cuts) >= 32) m_cuts *= 2;
    const std::int64_t m_size = clamp(div_up(div_up(M, m_cuts), kTileRows), 1, M) * kTileRows;
    return {n_size, m_size, div_up(M, m_size)};
}

}  // namespace

void linear(const LinearArgs& args) {
    check(args);
    if (args.x.rows == 0) return;
    const LinearPart* const parts = args.parts.data();
    const std::int64_t num_parts = static_cast<std::int64_t>(args.parts.size());
    std::int64_t num_outputs = 0;
    for (std::int64_t p = 0; p < num_parts; ++p) num_outputs += parts[p].w.rows;
    const Cut cut = choose_cut(args, num_outputs);
    std::int64_t num_rectangles = 0;
    for (std::int64_t p = 0; p < num_parts; ++p)
        num_rectangles += div_up(parts[p].w.rows, cut.n_size) * cut.m_cuts;

    auto rectangles = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::int64_t in_part = i;
            const LinearPart* part = parts;
            for (; in_part >= div_up(part->w.rows, cut.n_size) * cut.m_cuts; ++part) {
                in_part -= div_up(part->w.rows, cut.n_size) * cut.m_cuts;
            }
            const std::int64_t n_begin = in_part / cut.m_cuts * cut.n_size;
            const std::int64_t n_end = clamp(n_begin + cut.n_size, 0, part->w.rows);
            const std::int64_t m_begin = in_part % cut.m_cuts * cut.m_size;
            const std::int64_t m_end = clamp(m_begin + cut.m_size, 0, args.x.rows);
            if (args.x.dtype == DType::kBF16) {
                rectangle<Bf16Products>(args, *part, m_begin, m_end, n_begin, n_end);
            } else {
                rectangle<F32Products>(args, *part, m_begin, m_end, n_begin, n_end);
            }
        }
    };
    for_ranges(args.stream, num_rectangles, 1, rectangles);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
