#include "kernels/linear.h"

#include "kernels/reference.h"

namespace pitstop::kernels {

void check(const LinearArgs& args) {
    CHECK(is_valid(args.x));
    CHECK(!args.parts.empty() && args.parts.size() <= LinearArgs::kPartsMax);
    for (const LinearPart& part : args.parts) {
        CHECK(is_valid(part.w));
        CHECK(is_valid(part.y));
        CHECK(part.w.cols == args.x.cols);
        CHECK(part.w.rows == part.y.cols);
        CHECK(part.y.rows == args.x.rows);
        CHECK(args.mode == LinearMode::kWrite || part.y.dtype == DType::kF32);
    }
}

void linear_ref(const LinearArgs& args) {
    check(args);
    for (const LinearPart& part : args.parts) {
        for (std::int64_t m = 0; m < args.x.rows; ++m) {
            for (std::int64_t n = 0; n < part.w.rows; ++n) {
                double sum = 0.0;
                for (std::int64_t k = 0; k < args.x.cols; ++k) {
                    sum += at(args.x, m, k) * double{to_float(part.w.data[n * part.w.stride + k])};
                }
                if (part.bias != nullptr) sum += double{to_float(part.bias[n])};
                if (args.mode == LinearMode::kAdd) sum += at(part.y, m, n);
                put(part.y, m, n, sum);
            }
        }
    }
}

}  // namespace pitstop::kernels
