#include "kernels/rmsnorm.h"

#include "kernels/reference.h"

#include <cmath>
#include <limits>

namespace pitstop::kernels {

void check(const RmsNormArgs& args) {
    CHECK(is_valid(args.x));
    CHECK(is_valid(args.y));
    CHECK(args.y.rows == args.x.rows && args.y.cols == args.x.cols);
    CHECK(args.w != nullptr);
    CHECK(args.w_offset == 0.f || args.w_offset == 1.f);
    if (args.delta.data != nullptr) {
        CHECK(is_valid(args.delta));
        CHECK(args.delta.rows == args.x.rows && args.delta.cols == args.x.cols);
    }
}

void rmsnorm_ref(const RmsNormArgs& args) {
    check(args);
    const auto& [x, delta, w, y, w_offset, eps, marks, stream] = args;
    for (std::int64_t t = 0; t < x.rows; ++t) {
        float* const x_t = x.data + t * x.stride;
        double sum_sq = 0.0;
        for (std::int64_t i = 0; i < x.cols; ++i) {
            if (delta.data != nullptr) x_t[i] += delta.data[t * delta.stride + i];
            sum_sq += double{x_t[i]} * double{x_t[i]};
        }
        // A sum that fp32 cannot represent counts as infinite: part of the definition.
        const bool is_finite = sum_sq <= double{std::numeric_limits<float>::max()};
        double scale = 1.0 / std::sqrt(sum_sq / static_cast<double>(x.cols) + double{eps});
        if (!is_finite) scale = std::numeric_limits<double>::quiet_NaN();
        if (marks != nullptr) marks[t] = is_finite ? 0 : 1;
        for (std::int64_t i = 0; i < x.cols; ++i)
            put(y, t, i, double{x_t[i]} * scale * (double{w_offset} + double{to_float(w[i])}));
    }
}

}  // namespace pitstop::kernels
