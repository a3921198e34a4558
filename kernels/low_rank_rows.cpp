#include "kernels/low_rank_rows.h"

#include "kernels/reference.h"

namespace pitstop::kernels {

void check(const LowRankRowsArgs& args) {
    CHECK(is_valid(args.x));
    CHECK(args.tables != nullptr);
    CHECK(args.rank_max >= 1 && args.rank_max <= LowRankArgs::kRankMax);
    const auto num_parts = static_cast<std::int64_t>(args.parts.size());
    CHECK(num_parts >= 1 && num_parts <= LowRankRowsArgs::kPartsMax);
    CHECK(is_valid(ConstActView(args.h)));
    CHECK(args.h.rows >= args.x.rows && args.h.cols >= num_parts * args.rank_max);
    for (const LowRankRowsArgs::Part& part : args.parts) {
        CHECK(part.pair >= 0 && is_valid(ConstActView(part.y)) && part.y.rows >= args.x.rows);
        CHECK(part.y.dtype == args.parts[0].y.dtype);
    }
}

}  // namespace pitstop::kernels
