// The GPU, in free order and in fixed order.
#include "tests/kernels/backend.h"
#include "tests/kernels/cuda_support.h"

namespace pitstop::kernels::test {

std::vector<Backend> backends(Order order) {
    const Backend cuda{.name = "cuda", .ops = cuda_ops(), .is_gpu = true, .is_small = is_small()};
    Backend fixed = cuda;
    fixed.name = "cuda_deterministic";
    fixed.ops = cuda_deterministic_ops();
    switch (order) {
        case Order::kDefault:
            return {cuda};
        case Order::kFixed:
            return {fixed};
        case Order::kEvery:
            return {cuda, fixed};
    }
    CHECK(false);
}

}  // namespace pitstop::kernels::test
