#include "kernels/gate_heads.h"

#include "kernels/reference.h"

#include <cmath>
#include <limits>

namespace pitstop::kernels {

void check(const GateHeadsArgs& args) {
    CHECK(is_valid(args.y) && is_valid(args.gate));
    CHECK(args.head_dim >= 1 && args.y.cols % args.head_dim == 0);
    CHECK(args.gate_head_stride >= args.head_dim);
    const std::int64_t num_heads = args.y.cols / args.head_dim;
    CHECK(args.gate.cols == (num_heads - 1) * args.gate_head_stride + args.head_dim);
    CHECK(args.gate.rows == args.y.rows);
}

void gate_heads_ref(const GateHeadsArgs& args) {
    check(args);
    for (std::int64_t t = 0; t < args.y.rows; ++t) {
        for (std::int64_t i = 0; i < args.y.cols; ++i) {
            const std::int64_t head = i / args.head_dim;
            const std::int64_t column = head * args.gate_head_stride + i % args.head_dim;
            const double gate = at(args.gate, t, column);
            const double share = std::isfinite(gate) ? 1.0 / (1.0 + std::exp(-gate))
                                                     : std::numeric_limits<double>::quiet_NaN();
            put(args.y, t, i, at(args.y, t, i) * share);
        }
    }
}

}  // namespace pitstop::kernels
