#include "kernels/expert_linear.h"

#include "kernels/linear.h"
#include "kernels/reference.h"
#include "kernels/router.h"

namespace pitstop::kernels {

void check(const ExpertLinearArgs& args) {
    CHECK(is_valid(args.x));
    CHECK(!args.parts.empty() && args.parts.size() <= ExpertLinearArgs::kPartsMax);
    CHECK(args.num_experts >= 1 && args.num_experts <= RouteArgs::kExpertsMax);
    CHECK(args.begins != nullptr);
    for (const ExpertLinearPart& part : args.parts) {
        CHECK(is_valid(part.w) && is_valid(part.y));
        CHECK(part.w.cols == args.x.cols && part.w.rows == part.y.cols);
        CHECK(part.y.rows == args.x.rows);
        CHECK(args.num_experts == 1 || part.expert_stride >= part.w.rows * part.w.cols);
    }
}

void expert_linear_ref(const ExpertLinearArgs& args) {
    check(args);
    for (std::int32_t e = 0; e < args.num_experts; ++e) {
        const std::int64_t begin = args.begins[e];
        const std::int64_t num = args.begins[e + 1] - begin;
        for (const ExpertLinearPart& part : args.parts) {
            View2<const bf16> w = part.w;
            w.data += e * part.expert_stride;
            const LinearPart one{.w = w, .y = rows(part.y, begin, num)};
            linear_ref({.x = rows(args.x, begin, num), .parts = {&one, 1}});
        }
    }
}

}  // namespace pitstop::kernels
