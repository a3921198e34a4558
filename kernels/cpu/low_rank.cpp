// Two passes over all segments: the first computes every h, the second every y. A pass is cut
// into pieces of a few rows or columns, so that even one row of one adapter has work for
// several threads.
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

#include <cstddef>

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// A piece of h = A x has 4 rows of x and 8 ranks; a piece of y += s B h has all rows of a segment
// and 64 columns. Each piece is one thread's.
constexpr std::int64_t kRowsPerPiece = 4;
constexpr std::int64_t kRanksPerPiece = 8;
constexpr std::int64_t kColsPerPiece = 64;
// The tile of sum_h. Sums of 4 rows would not fit into AVX2's registers.
#if defined(__AVX512F__)
constexpr int kRows = 4;
#else
constexpr int kRows = 2;
#endif
constexpr int kRanks = 4;
constexpr std::int64_t kRowsAhead = 64;  // a prefetch is this many rows of b ahead: 4 KB at rank 16

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The pieces of h: rows, then ranks within them.
std::int64_t num_h_pieces(const LowRankSegment& segment) {
    return div_up(segment.num_rows, kRowsPerPiece) * div_up(segment.a.rows, kRanksPerPiece);
}
std::int64_t num_y_pieces(const LowRankSegment& segment) {
    return segment.num_rows == 0 ? 0 : div_up(segment.y.cols, kColsPerPiece);
}

// Sums h of some rows and of ranks [j, j + kRanks), which share the loads.
template <int kRowsOfX, int kRanksOfA, class X>
PITSTOP_INLINE void sum_h(
    const LowRankSegment& segment,
    const X* x,
    std::int64_t x_stride,
    std::int64_t K,
    std::int64_t row,
    std::int64_t j
) {
    F32x16 sums_of[kRowsOfX][kRanksOfA];
    for (int i = 0; i < kRowsOfX; ++i) {
        for (int c = 0; c < kRanksOfA; ++c) sums_of[i][c] = zero();
    }
    const float* const a = segment.a.data + j * segment.a.stride;
    const auto add = [&](std::int64_t k, auto load_some) {
        F32x16 of_x[kRowsOfX];
        for (int i = 0; i < kRowsOfX; ++i) of_x[i] = load_some(x + i * x_stride + k);
        for (int c = 0; c < kRanksOfA; ++c) {
            const F32x16 of_a = load_some(a + c * segment.a.stride + k);
            for (int i = 0; i < kRowsOfX; ++i) sums_of[i][c] = fma(of_a, of_x[i], sums_of[i][c]);
        }
    };
    std::int64_t k = 0;
    for (; k + kLanes <= K; k += kLanes) add(k, [](const auto* p) { return load(p); });
    if (k < K) add(k, [&](const auto* p) { return load(p, K - k); });
    for (int i = 0; i < kRowsOfX; ++i) {
        float* const h = segment.h.data + (row + i) * segment.h.stride + j;
        for (int c = 0; c < kRanksOfA; ++c) h[c] = sum(sums_of[i][c]);
    }
}

template <class X>
void sum_h_piece(const LowRankArgs& args, const LowRankSegment& segment, std::int64_t piece) {
    const std::int64_t num_rank_pieces = div_up(segment.a.rows, kRanksPerPiece);
    const std::int64_t row_begin = piece / num_rank_pieces * kRowsPerPiece;
    const std::int64_t rank_begin = piece % num_rank_pieces * kRanksPerPiece;
    const std::int64_t rows_left = segment.num_rows - row_begin;
    const std::int64_t ranks_left = segment.a.rows - rank_begin;
    const std::int64_t num_rows = rows_left < kRowsPerPiece ? rows_left : kRowsPerPiece;
    const std::int64_t num_ranks = ranks_left < kRanksPerPiece ? ranks_left : kRanksPerPiece;
    const std::int64_t K = args.x.cols;
    const X* const x =
        static_cast<const X*>(args.x.data) + (segment.row_begin + row_begin) * args.x.stride;
    for (std::int64_t j = 0; j < num_ranks;) {
        const bool is_tile = j + kRanks <= num_ranks;
        for (std::int64_t i = 0; i < num_rows;) {
            const X* const rows_of_x = x + i * args.x.stride;
            const std::int64_t row = row_begin + i;
            const std::int64_t rank = rank_begin + j;
            if (i + kRows <= num_rows) {
                if (is_tile) {
                    sum_h<kRows, kRanks>(segment, rows_of_x, args.x.stride, K, row, rank);
                } else {
                    sum_h<kRows, 1>(segment, rows_of_x, args.x.stride, K, row, rank);
                }
                i += kRows;
            } else {
                if (is_tile) {
                    sum_h<1, kRanks>(segment, rows_of_x, args.x.stride, K, row, rank);
                } else {
                    sum_h<1, 1>(segment, rows_of_x, args.x.stride, K, row, rank);
                }
                ++i;
            }
        }
        j += is_tile ? kRanks : 1;
    }
}

// Columns [n, n + 16) of y. The lanes sum sixteen outputs in parallel, each in order.
class Columns {
  public:
    // Transposes 16 rows of b, so that a lane has one of them.
    Columns(const LowRankSegment& segment, std::int64_t n)
        : segment_(segment),
          n_(n),
          num_cols_(segment.y.cols - n < kLanes ? segment.y.cols - n : kLanes) {
        const std::int64_t rank = segment.a.rows;
        for (std::int64_t j = 0; j < rank; j += kLanes) {
            const float* const b = segment.b.data + n * segment.b.stride + j;
            if (num_cols_ == kLanes && j + kLanes <= rank) {
                U32x16 block[kLanes];
                for (std::int64_t i = 0; i < kLanes; ++i) {
                    const float* const row = b + i * segment.b.stride;
                    __builtin_prefetch(
                        row + kRowsAhead * segment.b.stride, /*rw=*/0, /*locality=*/2
                    );
                    block[i] = as_u32(load(row));
                }
                transpose16(block);
                for (std::int64_t i = 0; i < kLanes; ++i) columns_[j + i] = as_f32(block[i]);
            } else {
                transpose_some(b, j);
            }
        }
    }

    // Adds to kRowsOfY rows of y, which share the loads of b.
    template <int kRowsOfY, class Y>
    PITSTOP_INLINE void add(std::int64_t row) const {
        const std::int64_t h_stride = segment_.h.stride;
        const float* const h = segment_.h.data + row * h_stride;
        F32x16 sums[kRowsOfY];
        for (int i = 0; i < kRowsOfY; ++i) sums[i] = zero();
        for (std::int64_t j = 0; j < segment_.a.rows; ++j) {
            const F32x16 of_b = columns_[j];
            for (int i = 0; i < kRowsOfY; ++i)
                sums[i] = fma(of_b, set1(h[i * h_stride + j]), sums[i]);
        }
        const F32x16 scale = set1(segment_.scale);
        Y* const y =
            static_cast<Y*>(segment_.y.data) + (segment_.row_begin + row) * segment_.y.stride + n_;
        for (int i = 0; i < kRowsOfY; ++i) {
            Y* const at = y + i * segment_.y.stride;
            __builtin_prefetch(at + kLanes, /*rw=*/1, /*locality=*/3);
            store_up_to(at, load_up_to(at, num_cols_) + scale * sums[i], num_cols_);
        }
    }

  private:
    // Fewer than 16 rows of b, or of ranks.
    void transpose_some(const float* b, std::int64_t j) {
        const std::int64_t num_ranks = segment_.a.rows - j;
        U32x16 block[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i) {
            block[i] = i < num_cols_ ? as_u32(load_up_to(b + i * segment_.b.stride, num_ranks))
                                     : set1_u32(0);
        }
        transpose16(block);
        for (std::int64_t i = 0; i < kLanes && i < num_ranks; ++i)
            columns_[j + i] = as_f32(block[i]);
    }

    const LowRankSegment& segment_;
    std::int64_t n_;
    std::int64_t num_cols_;
    F32x16 columns_[LowRankArgs::kRankMax];
};

template <class Y>
void add_cols(const LowRankSegment& segment, std::int64_t n) {
    const Columns columns(segment, n);
    std::int64_t row = 0;
    for (; row + 4 <= segment.num_rows; row += 4) columns.add<4, Y>(row);
    for (; row < segment.num_rows; ++row) columns.add<1, Y>(row);
}

void add_y_piece(const LowRankSegment& segment, std::int64_t piece) {
    const std::int64_t begin = piece * kColsPerPiece;
    const std::int64_t left = segment.y.cols - begin;
    const std::int64_t end = begin + (left < kColsPerPiece ? left : kColsPerPiece);
    for (std::int64_t n = begin; n < end; n += kLanes) {
        if (segment.y.dtype == DType::kF32) {
            add_cols<float>(segment, n);
        } else {
            add_cols<bf16>(segment, n);
        }
    }
}

// The pieces of all segments, one segment's after the other's. Rows of many experts and adapters
// make thousands of segments, so that a range does not search for its first one from the beginning.
// No vector: code for one processor must not define functions that other code shares.
class Pieces {
  public:
    template <class Num>
    PITSTOP_INLINE Pieces(const LowRankArgs& args, Num num_of)
        : args_(args),
          num_segments_(static_cast<std::int64_t>(args.segments.size())),
          apart_(div_up(num_segments_, kMarks)) {
        for (std::int64_t i = 0; i < num_segments_; ++i) {
            if (i % apart_ == 0) marks_[num_marks_++] = num_;
            num_ += num_of(segment(i));
        }
    }
    [[nodiscard]] PITSTOP_INLINE std::int64_t num() const { return num_; }

    // Calls fn(segment, piece) for pieces [begin, end).
    template <class Num, class F>
    PITSTOP_INLINE void walk(std::int64_t begin, std::int64_t end, Num num_of, F fn) const {
        std::int64_t mark = 0;
        while (mark + 1 < num_marks_ && marks_[mark + 1] <= begin) ++mark;
        std::int64_t first = marks_[mark];
        for (std::int64_t i = mark * apart_; i < num_segments_ && first < end; ++i) {
            const std::int64_t num = num_of(segment(i));
            for (std::int64_t piece = begin < first ? 0 : begin - first;
                 piece < num && first + piece < end;
                 ++piece)
                fn(segment(i), piece);
            first += num;
        }
    }

  private:
    static constexpr std::int64_t kMarks = 64;

    [[nodiscard]] PITSTOP_INLINE const LowRankSegment& segment(std::int64_t i) const {
        return args_.segments[static_cast<std::size_t>(i)];
    }

    const LowRankArgs& args_;
    std::int64_t num_segments_;
    std::int64_t apart_;            // a mark at every apart_-th segment
    std::int64_t marks_[kMarks]{};  // the number of pieces before that segment
    std::int64_t num_marks_ = 0;
    std::int64_t num_ = 0;
};

}  // namespace

void low_rank(const LowRankArgs& args) {
    check(args);
    const Pieces of_h(args, num_h_pieces);
    auto sum_some = [&](std::int64_t begin, std::int64_t end) {
        of_h.walk(begin, end, num_h_pieces, [&](const LowRankSegment& segment, std::int64_t piece) {
            if (args.x.dtype == DType::kF32) {
                sum_h_piece<float>(args, segment, piece);
            } else {
                sum_h_piece<bf16>(args, segment, piece);
            }
        });
    };
    for_ranges(args.stream, of_h.num(), grain_of_bytes(kRanksPerPiece * args.x.cols * 4), sum_some);
    const Pieces of_y(args, num_y_pieces);
    auto add_some = [&](std::int64_t begin, std::int64_t end) {
        of_y.walk(begin, end, num_y_pieces, add_y_piece);
    };
    for_ranges(args.stream, of_y.num(), /*grain=*/8, add_some);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
