#include "kernels/scatter.h"

namespace pitstop::kernels {

void check(const ScatterArgs& args) {
    CHECK(args.num >= 0);
    if (args.num == 0) return;
    CHECK(args.at != nullptr && args.values != nullptr && args.data != nullptr);
}

void scatter_ref(const ScatterArgs& args) {
    check(args);
    for (std::int64_t i = 0; i < args.num; ++i) {
        bf16& element = args.data[args.at[i]];
        if (args.num_different == nullptr) {
            element = args.values[i];
        } else if (element.bits != args.values[i].bits) {
            ++*args.num_different;
        }
    }
}

}  // namespace pitstop::kernels
