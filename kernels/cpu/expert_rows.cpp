#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

void sum_row(const SumExpertRowsArgs& args, std::int64_t t) {
    const std::int64_t H = args.y.cols;
    const std::int64_t k = args.row_of.cols;
    const std::int32_t* const row_of = args.row_of.data + t * args.row_of.stride;
    const float* const weights = args.weights.data + t * args.weights.stride;
    float* const y = args.y.data + t * args.y.stride;
    for (std::int64_t h = 0; h < H; h += kLanes) {
        F32x16 sum = zero();
        for (std::int64_t j = 0; j < k; ++j) {
            if (row_of[j] < 0) continue;
            const float* const row = args.rows.data + row_of[j] * args.rows.stride + h;
            sum = fma(set1(weights[j]), load_up_to(row, H - h), sum);
        }
        if (args.shared.data != nullptr) {
            const F32x16 gate = set1(args.gate.data[t * args.gate.stride]);
            const F32x16 share = set1(1.f) / (set1(1.f) + exp(zero() - gate));
            const float* const shared = args.shared.data + t * args.shared.stride + h;
            sum = fma(share, load_up_to(shared, H - h), sum);
        }
        store_up_to(y + h, sum, H - h);
    }
}

}  // namespace

void sum_expert_rows(const SumExpertRowsArgs& args) {
    check(args);
    auto some = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) sum_row(args, t);
    };
    const std::int64_t bytes = args.y.cols * 4 * (args.row_of.cols + 2);
    for_ranges(args.stream, args.y.rows, grain_of_bytes(bytes), some);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
