#include "kernels/silu_mul.h"

#include "kernels/reference.h"

#include <cmath>

namespace pitstop::kernels {

void check(const SiluMulArgs& args) {
    CHECK(is_valid(args.gate) && is_valid(args.up) && is_valid(args.y));
    CHECK(args.gate.dtype == args.up.dtype);
    CHECK(args.up.rows == args.gate.rows && args.up.cols == args.gate.cols);
    CHECK(args.y.rows == args.gate.rows && args.y.cols == args.gate.cols);
}

void silu_mul_ref(const SiluMulArgs& args) {
    check(args);
    for (std::int64_t t = 0; t < args.y.rows; ++t) {
        for (std::int64_t i = 0; i < args.y.cols; ++i) {
            const double gate = at(args.gate, t, i);
            put(args.y, t, i, gate / (1.0 + std::exp(-gate)) * at(args.up, t, i));
        }
    }
}

}  // namespace pitstop::kernels
