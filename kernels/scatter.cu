#include "kernels/scatter.h"

#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;

// grid [ceil(num / kThreads)], block [kThreads]; a thread per element. Bound by the sectors that
// single elements touch: 32 bytes of memory for the 10 that are read.
__global__ void __launch_bounds__(kThreads) scatter_kernel(
    const std::int64_t* __restrict__ at,
    const bf16* __restrict__ values,
    std::int64_t num,
    bf16* __restrict__ data,
    std::uint64_t* __restrict__ num_different  // or null
) {
    const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (num_different == nullptr) {
        if (i < num) data[at[i]] = values[i];
        return;
    }
    const std::uint64_t differs = i < num && data[at[i]].bits != values[i].bits ? 1 : 0;
    const std::uint64_t sum = block_sum<kThreads>(differs);
    if (threadIdx.x == 0 && sum != 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(num_different), sum);
}

}  // namespace

void scatter_cuda(const ScatterArgs& args) {
    check(args);
    launch<scatter_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.num, kThreads))),
         .block = dim3(kThreads),
         .stream = args.stream},
        args.at,
        args.values,
        args.num,
        args.data,
        args.num_different
    );
}

}  // namespace pitstop::kernels
