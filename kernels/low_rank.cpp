#include "kernels/low_rank.h"

#include "kernels/reference.h"

namespace pitstop::kernels {

void check(const LowRankArgs& args) {
    CHECK(is_valid(args.x));
    for (const LowRankSegment& segment : args.segments) {
        CHECK(segment.row_begin >= 0 && segment.num_rows >= 0);
        CHECK(segment.row_begin + segment.num_rows <= args.x.rows);
        CHECK(is_valid(ConstActView(segment.a)) && is_valid(ConstActView(segment.b)));
        CHECK(is_valid(ConstActView(segment.y)) && is_valid(ConstActView(segment.h)));
        const std::int64_t rank = segment.a.rows;
        CHECK(rank >= 1 && rank <= LowRankArgs::kRankMax);
        CHECK(segment.a.cols == args.x.cols && segment.b.cols == rank);
        CHECK(segment.b.rows == segment.y.cols && segment.y.rows >= args.x.rows);
        CHECK(segment.h.rows >= segment.num_rows && segment.h.cols == rank);
    }
}

void low_rank_ref(const LowRankArgs& args) {
    check(args);
    for (const LowRankSegment& segment : args.segments) {
        const std::int64_t rank = segment.a.rows;
        for (std::int64_t i = 0; i < segment.num_rows; ++i) {
            const std::int64_t m = segment.row_begin + i;
            double h[LowRankArgs::kRankMax];
            for (std::int64_t j = 0; j < rank; ++j) {
                h[j] = 0.0;
                for (std::int64_t k = 0; k < args.x.cols; ++k)
                    h[j] += double{segment.a.data[j * segment.a.stride + k]} * at(args.x, m, k);
            }
            for (std::int64_t n = 0; n < segment.y.cols; ++n) {
                double sum = 0.0;
                for (std::int64_t j = 0; j < rank; ++j)
                    sum += double{segment.b.data[n * segment.b.stride + j]} * h[j];
                put(segment.y, m, n, at(segment.y, m, n) + double{segment.scale} * sum);
            }
        }
    }
}

}  // namespace pitstop::kernels
