// Cuts the outputs into rectangles for the threads. A rectangle has blocks whose rows of w stay in
// L2, and a block's rows of x are cut into strips; linear_tile.h has the tiles of a strip. None of
// this affects bits.
#include "kernels/cpu/families.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// The rows of x and of w in a tile. Accumulators, the rows of w in use and one row of x must fit
// into the registers: 32 zmm, or 16 ymm (two per vector). A tile of few rows has more columns, so
// that more chains hide the latency of the sums.
#if defined(__AVX512F__)
constexpr int kStripRows = 6;
constexpr int kWideStripRows = 8;
constexpr int cols_of(int num_rows) { return num_rows <= 2 ? 8 : num_rows <= 6 ? 4 : 2; }
#else
constexpr int kStripRows = 2;
constexpr int kWideStripRows = 2;
constexpr int cols_of(int num_rows) { return num_rows == 1 ? 4 : 2; }
#endif
constexpr std::int64_t kColsAlign = 8;  // a range of outputs is a multiple of every tile's columns
constexpr std::int64_t kRowsAhead = 8;  // how far a single strip fetches ahead, in rows of w
// bytes of w per block: a block and the next one fill a quarter of L2
constexpr std::int64_t kBlockBytes = 128 << 10;
constexpr std::int64_t kXBytesMax = 16 << 10;  // bytes of x that tiles read repeatedly: half of L1

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
}

// Returns the number of outputs of a block whose rows of w stay in L2 between strips.
std::int64_t block_cols(std::int64_t K) {
    const std::int64_t cols = kBlockBytes / (K * 2) / kColsAlign * kColsAlign;
    return cols < kColsAlign ? kColsAlign : cols;
}

// Returns the number of strips of M rows; strips are as equal as possible. Memory-bound products
// use one wide strip. If the x of a strip fits into L1, they use two, which read w more evenly.
std::int64_t num_strips(std::int64_t M, std::int64_t bytes_per_row) {
    const bool fits = kWideStripRows * bytes_per_row <= kXBytesMax;
    const std::int64_t few = std::int64_t{kWideStripRows} * (fits ? 2 : 1);
    return div_up(M, M <= few ? kWideStripRows : kStripRows);
}

// Returns how much of K a strip sums at once. A narrow strip whose x does not fit into L1 has fewer
// rows of x to read per sum, and is faster with all of K.
std::int64_t depth_of(int num_rows, std::int64_t K, std::int64_t element_bytes) {
    if (num_rows <= kStripRows || num_rows * K * element_bytes <= kXBytesMax) return K;
    return kXBytesMax / (kWideStripRows * element_bytes);
}

// Returns an upper bound of the accumulators of a strip and a block, which are in memory between
// two parts of the sums. Parts exist if K is above kXBytesMax / (num_rows * element_bytes), and
// block_cols() falls with K.
constexpr std::int64_t waiting_max(std::int64_t num_rows, std::int64_t element_bytes) {
    return num_rows * (kBlockBytes / 2) / (kXBytesMax / (num_rows * element_bytes));
}

// The rows of w that a thread reads next: those of a rectangle, then the first ones of the
// rectangle that it likely gets after that.
struct Ahead {
    const bf16* row = nullptr;  // the next row to fetch
    std::int64_t num_left = 0;  // rows of the rectangle from `row` on; `then` is after them
    const bf16* then = nullptr;
    std::int64_t num_fetched = 0;

    PITSTOP_INLINE void move(std::int64_t num_rows, std::int64_t stride) {
        row += num_rows * stride;
        num_fetched += num_rows;
        num_left -= num_rows;
        if (num_left > 0 || then == nullptr) return;
        row = then;
        then = nullptr;
    }
};

// Computes outputs [n_begin, n_end) of one part for some rows, from row `m` on, and fetches ahead.
struct Strip {
    const LinearArgs& args;
    const LinearPart& part;
    std::int64_t m;
    std::int64_t n_begin;
    std::int64_t n_end;

    template <class Products, int kRows, Fetch kFetch>
    void walk(Ahead& ahead) const {
        constexpr int kCols = cols_of(kRows);
        const auto* const x =
            static_cast<const typename Products::X*>(args.x.data) + m * args.x.stride;
        const std::int64_t num_tiled = (n_end - n_begin) / kCols * kCols;
        const std::int64_t K = args.x.cols;
        const std::int64_t depth = depth_of(kRows, K, sizeof(*x));
        constexpr bool kInParts = kRows > kStripRows;
        alignas(64) float waiting[kInParts ? waiting_max(kRows, sizeof(*x)) * kLanes : kLanes];
        const Ahead from = ahead;
        for (std::int64_t k = 0; k < K; k += depth) {
            const Depth some{k, clamp(k + depth, 0, K), k == 0, k + depth >= K};
            ahead = from;  // each part fetches its own columns of the same rows
            for (std::int64_t n = 0; n < num_tiled; n += kCols) {
                tile<Products, kRows, kCols, kFetch, kInParts>(
                    x,
                    args.x.stride,
                    part,
                    args.mode,
                    m,
                    n_begin + n,
                    some,
                    ahead.row,
                    waiting + (kInParts ? n * kRows * kLanes : 0)
                );
                if (kFetch != Fetch::kNone) ahead.move(fetched_by(kFetch, kCols), part.w.stride);
            }
        }
        for (std::int64_t n = n_begin + num_tiled; n < n_end; ++n) {
            tile<Products, kRows, 1, Fetch::kNone, /*kInParts=*/false>(
                x, args.x.stride, part, args.mode, m, n, Depth{0, K}, nullptr, nullptr
            );
        }
    }

    template <class Products, int kRows>
    void walk_fetching(Fetch fetch, Ahead& ahead) const {
        switch (fetch) {
            case Fetch::kNone:
                return walk<Products, kRows, Fetch::kNone>(ahead);
            case Fetch::kOneRow:
                return walk<Products, kRows, Fetch::kOneRow>(ahead);
            case Fetch::kTwoRows:
                return walk<Products, kRows, Fetch::kTwoRows>(ahead);
            case Fetch::kRowPerCol:
                return walk<Products, kRows, Fetch::kRowPerCol>(ahead);
        }
    }

    // REQUIRES: 1 <= num_rows <= kWideStripRows.
    template <class Products, int kRows = kWideStripRows>
    void walk_rows(std::int64_t num_rows, Fetch fetch, Ahead& ahead) const {
        if constexpr (kRows > 1) {
            if (num_rows < kRows) return walk_rows<Products, kRows - 1>(num_rows, fetch, ahead);
        }
        walk_fetching<Products, kRows>(fetch, ahead);
    }
};

// Returns the slowest fetch with which `tiles` tiles of `num_cols` columns fetch `num_rows`.
Fetch choose_fetch(std::int64_t num_rows, std::int64_t tiles, int num_cols) {
    if (num_rows <= 0) return Fetch::kNone;
    if (num_rows <= tiles) return Fetch::kOneRow;
    return num_rows <= 2 * tiles && num_cols > 2 ? Fetch::kTwoRows : Fetch::kRowPerCol;
}

struct Rectangle {
    const LinearPart* part = nullptr;  // null: no rectangle
    std::int64_t m_begin = 0;
    std::int64_t m_end = 0;
    std::int64_t n_begin = 0;
    std::int64_t n_end = 0;

    [[nodiscard]] std::int64_t num_rows() const { return m_end - m_begin; }
    [[nodiscard]] std::int64_t num_outputs() const { return n_end - n_begin; }
};

// Computes the outputs of one rectangle, block by block. To keep the memory busy, the strips of one
// block together fetch the next block's rows. The strips of the last block fetch the first rows of
// `after`, the rectangle that this thread likely gets next. A single strip fetches just ahead of
// itself. At the beginning, each strip fetches rows that it needs and that no earlier rectangle has
// fetched.
template <class Products>
void compute(
    const LinearArgs& args, const Rectangle& at, bool was_fetched, const Rectangle& after
) {
    const LinearPart& part = *at.part;
    const std::int64_t K = args.x.cols;
    const std::int64_t block = block_cols(K);
    const std::int64_t strips = num_strips(at.num_rows(), K * sizeof(typename Products::X));
    const std::int64_t distance = strips == 1 ? kRowsAhead : block;  // counted in rows of w
    const std::int64_t num_then = clamp(after.num_outputs(), 0, distance);
    Ahead ahead{part.w.data + at.n_begin * part.w.stride, at.num_outputs()};
    if (num_then > 0) ahead.then = after.part->w.data + after.n_begin * after.part->w.stride;
    ahead.move(was_fetched ? distance : kRowsAhead, part.w.stride);
    for (std::int64_t n = at.n_begin; n < at.n_end; n += block) {
        const std::int64_t n_next = n + block < at.n_end ? n + block : at.n_end;
        const std::int64_t needed = n_next - at.n_begin;  // rows of w, from the rectangle's first
        const std::int64_t wanted = clamp(needed + distance, 0, at.num_outputs() + num_then);
        std::int64_t m = at.m_begin;
        for (std::int64_t left = strips; left > 0; --left) {
            const std::int64_t rows = div_up(at.m_end - m, left);
            const int cols = cols_of(static_cast<int>(rows));
            const std::int64_t tiles = left * ((n_next - n) / cols);
            const Fetch fetch = ahead.num_fetched < needed
                                    ? Fetch::kRowPerCol
                                    : choose_fetch(wanted - ahead.num_fetched, tiles, cols);
            Strip{args, part, m, n, n_next}.template walk_rows<Products>(rows, fetch, ahead);
            m += rows;
        }
    }
}

// How the outputs are cut into rectangles.
struct Cut {
    std::int64_t n_size;  // outputs of one rectangle, a multiple of kColsAlign
    std::int64_t m_size;  // rows of one rectangle
    std::int64_t m_cuts;
};

// The cut of one of `num_products` equal products; all are cut the same way.
Cut choose_cut(const LinearArgs& args, std::int64_t num_outputs, std::int64_t num_products = 1) {
    // blocks per rectangle; the first block of each was not fetched ahead
    constexpr std::int64_t kBlocksMax = 8;
    constexpr std::int64_t kProductsMin =
        128 << 10;  // per rectangle: about 5 us, worth waking a thread for
    constexpr std::int64_t kRectanglesPerThread =
        8;  // so that a slow thread costs at most an eighth
    const std::int64_t K = args.x.cols;
    const std::int64_t M = args.x.rows;
    const std::int64_t wanted =
        div_up(num_threads_of(args.stream) * kRectanglesPerThread, num_products);
    const std::int64_t products_cols = div_up(kProductsMin, K * M > 0 ? K * M : 1);
    const std::int64_t balanced = div_up(num_outputs, wanted);
    const std::int64_t fits = kBlocksMax * block_cols(K);
    std::int64_t n_size = balanced < fits ? balanced : fits;
    n_size = n_size > products_cols ? n_size : products_cols;
    n_size = div_up(clamp(n_size, 1, num_outputs), kColsAlign) * kColsAlign;
    std::int64_t m_cuts = 1;
    const std::int64_t n_cuts = div_up(num_outputs, n_size);
    while (n_cuts * m_cuts < wanted && M / (2 * m_cuts) >= 32) m_cuts *= 2;
    const std::int64_t m_size = clamp(div_up(div_up(M, m_cuts), kStripRows), 1, M) * kStripRows;
    return {n_size, m_size, div_up(M, m_size)};
}

}  // namespace

void linear(const LinearArgs& args) {
    check(args);
    std::int64_t num_outputs = 0;
    for (const LinearPart& part : args.parts) num_outputs += part.w.rows;
    if (args.x.rows == 0 || num_outputs == 0) return;
    const Cut cut = choose_cut(args, num_outputs);
    const auto rectangles_of = [&](const LinearPart& part) {
        return div_up(part.w.rows, cut.n_size) * cut.m_cuts;
    };
    const auto rectangle = [&](std::int64_t i) -> Rectangle {
        for (const LinearPart& part : args.parts) {
            if (i < rectangles_of(part)) {
                const std::int64_t n = i / cut.m_cuts * cut.n_size;
                const std::int64_t m = i % cut.m_cuts * cut.m_size;
                const std::int64_t m_end = clamp(m + cut.m_size, 0, args.x.rows);
                return {&part, m, m_end, n, clamp(n + cut.n_size, 0, part.w.rows)};
            }
            i -= rectangles_of(part);
        }
        return {};
    };
    std::int64_t num_rectangles = 0;
    for (const LinearPart& part : args.parts) num_rectangles += rectangles_of(part);
    const std::int64_t num_threads = num_threads_of(args.stream);
    auto some = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const Rectangle at = rectangle(i);
            const Rectangle after = rectangle(i + num_threads);
            if (at.part == nullptr) return;
            if (args.x.dtype == DType::kBF16) {
                compute<Bf16Products>(args, at, i >= num_threads, after);
            } else {
                compute<F32Products>(args, at, i >= num_threads, after);
            }
        }
    };
    for_ranges(args.stream, num_rectangles, 1, some);
}

namespace {

// Cuts the products of experts into rectangles: all rows of one expert, and outputs of one part.
// Experts without rows have no rectangles.
class ExpertCut {
  public:
    explicit ExpertCut(const ExpertLinearArgs& args) : args_(args) {
        std::int64_t num_outputs = 0;
        for (const ExpertLinearPart& part : args.parts) num_outputs += part.w.rows;
        std::int64_t num_active = 0;
        for (std::int32_t e = 0; e < args.num_experts; ++e) num_active += rows_of(e) > 0;
        if (num_active == 0) return;
        // Like choose_cut(), for experts of average size.
        LinearArgs average{.x = args.x, .stream = args.stream};
        average.x.rows = div_up(args.begins[args.num_experts] - args.begins[0], num_active);
        n_size_ = choose_cut(average, num_outputs, num_active).n_size;
        for (const ExpertLinearPart& part : args.parts)
            num_per_expert_ += div_up(part.w.rows, n_size_);
        num_rectangles_ = num_active * num_per_expert_;
    }

    [[nodiscard]] std::int64_t num_rectangles() const { return num_rectangles_; }

    // One rectangle, and its product.
    struct Place {
        LinearPart part{};
        Rectangle at{};
    };
    // Sets `place`, which must not move afterwards. Past the last rectangle, the place is empty.
    void find(std::int64_t i, Place& place) const {
        place.at = {};
        for (std::int32_t e = 0; e < args_.num_experts; ++e) {
            if (rows_of(e) == 0) continue;
            if (i < num_per_expert_) return set(e, i, place);
            i -= num_per_expert_;
        }
    }

  private:
    [[nodiscard]] std::int64_t rows_of(std::int32_t expert) const {
        return args_.begins[expert + 1] - args_.begins[expert];
    }
    void set(std::int32_t expert, std::int64_t i, Place& place) const {
        for (const ExpertLinearPart& part : args_.parts) {
            const std::int64_t num = div_up(part.w.rows, n_size_);
            if (i >= num) {
                i -= num;
                continue;
            }
            place.part.w = part.w;
            place.part.w.data += expert * part.expert_stride;
            place.part.y = part.y;
            place.at = {
                .part = &place.part,
                .m_begin = args_.begins[expert],
                .m_end = args_.begins[expert + 1],
                .n_begin = i * n_size_,
                .n_end = clamp((i + 1) * n_size_, 0, part.w.rows)};
            return;
        }
    }

    const ExpertLinearArgs& args_;
    std::int64_t n_size_ = 1;
    std::int64_t num_per_expert_ = 0;
    std::int64_t num_rectangles_ = 0;
};

}  // namespace

void expert_linear(const ExpertLinearArgs& args) {
    check(args);
    const ExpertCut cut(args);
    const LinearArgs all{.x = args.x, .stream = args.stream};
    const std::int64_t num_threads = num_threads_of(args.stream);
    auto some = [&](std::int64_t begin, std::int64_t end) {
        ExpertCut::Place place;
        ExpertCut::Place after;
        for (std::int64_t i = begin; i < end; ++i) {
            cut.find(i, place);
            cut.find(i + num_threads, after);
            if (args.x.dtype == DType::kBF16) {
                compute<Bf16Products>(all, place.at, i >= num_threads, after.at);
            } else {
                compute<F32Products>(all, place.at, i >= num_threads, after.at);
            }
        }
    };
    for_ranges(args.stream, cut.num_rectangles(), 1, some);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
