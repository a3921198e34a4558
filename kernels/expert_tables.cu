#include "kernels/expert_tables.h"

#include "kernels/device/numbers.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;

// grid [ceil(R / kThreads)], block [kThreads]; a thread owns a row, and finds its expert by halving
// the range of experts. Latency-bound: 20 bytes per row, and log2(E) reads of begins from L2. NOT
// MEASURED on a device.
__global__ void __launch_bounds__(kThreads) expert_tables_kernel(
    const LowRankPair* const* tables,  // [T]
    const std::int32_t* begins,        // [num_experts + 1]
    const std::int32_t* token_of,      // [num_rows]
    int num_experts,
    std::int64_t num_rows,
    std::int64_t pairs_per_expert,
    const LowRankPair** to  // [num_rows]
) {
    const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (row >= num_rows) return;
    const bool has_expert = row < begins[num_experts];
    const LowRankPair* const table = has_expert ? tables[token_of[row]] : nullptr;
    if (table == nullptr) {
        to[row] = nullptr;
        return;
    }
    // begins[expert] <= row < begins[end]; experts without rows begin where the next one does.
    int expert = 0;
    int end = num_experts;
    while (end - expert > 1) {
        const int middle = (expert + end) / 2;
        (begins[middle] <= row ? expert : end) = middle;
    }
    to[row] = table + expert * pairs_per_expert;
}

}  // namespace

void expert_tables_cuda(const ExpertTablesArgs& args) {
    check(args);
    if (args.num_rows == 0) return;
    launch<expert_tables_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.num_rows, std::int64_t{kThreads}))),
         .block = dim3(kThreads),
         .stream = args.stream},
        args.tables,
        args.begins,
        args.token_of,
        args.num_experts,
        args.num_rows,
        args.pairs_per_expert,
        args.to
    );
}

}  // namespace pitstop::kernels
