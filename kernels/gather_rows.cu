#include "kernels/gather_rows.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;
// loads per thread that precede their stores: the compiler moves no load above a store
constexpr int kBatch = 4;

// grid [N], block [kThreads]; a block owns a row, which it reads and writes once. Latency-bound: N
// is the number of sampled rows, and 64 rows of 8 KiB are 1 MB. x and row_index are not
// __restrict__: the previous kernel writes them, and the compiler may move a read of __restrict__
// memory above the wait.
template <class Unit>  // uint4 if every row is 16-byte aligned and a multiple of 16 bytes
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(
    const Unit* x,                  // [T, row_units]
    std::int64_t x_stride,          // units between rows
    const std::int32_t* row_index,  // [N]
    Unit* y,                        // [N, row_units]
    std::int64_t y_stride,
    std::int64_t row_units
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const Unit* const from = x + std::int64_t{row_index[blockIdx.x]} * x_stride;
    Unit* const to = y + std::int64_t{blockIdx.x} * y_stride;
    std::int64_t i = threadIdx.x;
    for (; i + (kBatch - 1) * kThreads < row_units; i += kBatch * kThreads) {
        Unit units[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) units[j] = from[i + j * kThreads];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) to[i + j * kThreads] = units[j];
    }
    for (; i < row_units; i += kThreads) to[i] = from[i];
}

template <class Unit>
void run(const GatherRowsArgs& args) {
    const std::int64_t size = size_of(args.x.dtype);
    const auto units = [&](std::int64_t elements) {
        return elements * size / static_cast<std::int64_t>(sizeof(Unit));
    };
    launch<gather_rows_kernel<Unit>>(
        {.grid = dim3(narrow<unsigned>(args.y.rows)),
         .block = dim3(kThreads),
         .stream = args.stream,
         .starts_early = true},
        static_cast<const Unit*>(args.x.data),
        units(args.x.stride),
        args.row_index,
        static_cast<Unit*>(args.y.data),
        units(args.y.stride),
        units(args.x.cols)
    );
}

}  // namespace

void gather_rows_cuda(const GatherRowsArgs& args) {
    check(args);
    const std::int64_t size = size_of(args.x.dtype);
    const bool is_aligned_16 = is_aligned(args.x.data, 16) && is_aligned(args.y.data, 16) &&
                               args.x.cols * size % 16 == 0 && args.x.stride * size % 16 == 0 &&
                               args.y.stride * size % 16 == 0;
    if (is_aligned_16) {
        run<uint4>(args);
    } else {
        size == 4 ? run<std::uint32_t>(args) : run<std::uint16_t>(args);
    }
}

}  // namespace pitstop::kernels
