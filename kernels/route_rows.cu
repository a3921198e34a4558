#include "kernels/route_rows.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;

// grid [N], block [kThreads]; a block owns a row, a thread every kThreads-th of its ids.
// Memory-bound: 4 + id_bytes bytes per id; but 64 rows of 48 layers and 8 experts are 123 KB, so
// latency dominates. NOT MEASURED on a device.
__global__ void __launch_bounds__(kThreads) route_rows_kernel(
    const std::int32_t* chosen,      // [L, >= T, k]
    std::int64_t layer_stride,       // elements
    std::int32_t num_layers,         // L
    std::int32_t per_token,          // k
    const std::int32_t* token_rows,  // [N]
    std::int32_t id_bytes,           // 1 or 2
    std::uint8_t* y                  // [N, L, k, id_bytes]
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t row = token_rows[blockIdx.x];
    const std::int32_t num_ids = num_layers * per_token;
    std::uint8_t* const to = y + std::int64_t{blockIdx.x} * num_ids * id_bytes;
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < num_ids; i += kThreads) {
        const std::int32_t id =
            chosen[i / per_token * layer_stride + row * per_token + i % per_token];
        to[i * id_bytes] = static_cast<std::uint8_t>(id & 0xff);
        if (id_bytes == 2) to[i * id_bytes + 1] = static_cast<std::uint8_t>(id >> 8 & 0xff);
    }
}

constexpr unsigned kBlocksPerLayerMax = 32;

// grid [L, blocks of a layer], block [kThreads]; a thread owns every (blocks * kThreads)-th choice
// of a layer. Integers: the order of the atomics changes nothing. Latency: 64 tokens of 48 layers
// and 8 experts are 24,576 atomics over 6,144 counts. NOT MEASURED on a device.
__global__ void __launch_bounds__(kThreads) count_choices_kernel(
    const std::int32_t* chosen,  // [L, >= T, k]
    std::int64_t layer_stride,   // elements
    std::int64_t num_choices,    // T * k
    std::int64_t num_experts,    // E
    unsigned long long* counts   // [L, E]
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    chosen += blockIdx.x * layer_stride;
    counts += blockIdx.x * num_experts;
    const std::int64_t stride = std::int64_t{gridDim.y} * kThreads;
    for (std::int64_t i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; i < num_choices;
         i += stride)
        atomicAdd(counts + chosen[i], 1ull);
}

// grid [ceil(num / kThreads)], block [kThreads]; a thread owns a count. Memory-bound: 16 bytes a
// count. NOT MEASURED on a device.
__global__ void __launch_bounds__(kThreads) copy_counts_kernel(
    const std::int64_t* counts,  // [num]
    std::int64_t num,
    std::int64_t* y  // [num]
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i < num) y[i] = counts[i];
}

}  // namespace

void count_choices_cuda(const CountChoicesArgs& args) {
    check(args);
    const std::int64_t num = args.num_layers * args.num_experts;
    const std::int64_t num_choices = args.num_tokens * args.per_token;
    if (num_choices > 0) {
        const auto blocks = std::min<std::int64_t>(
            ceil_div(num_choices, std::int64_t{kThreads}), kBlocksPerLayerMax
        );
        launch<count_choices_kernel>(
            {.grid = dim3(narrow<unsigned>(args.num_layers), narrow<unsigned>(blocks)),
             .block = dim3(kThreads),
             .stream = args.stream,
             .starts_early = true},
            args.chosen,
            args.layer_stride,
            num_choices,
            args.num_experts,
            reinterpret_cast<unsigned long long*>(args.counts)
        );
    }
    if (args.y == nullptr) return;
    launch<copy_counts_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(num, std::int64_t{kThreads}))),
         .block = dim3(kThreads),
         .stream = args.stream,
         .starts_early = true},
        args.counts,
        num,
        args.y
    );
}

void route_rows_cuda(const RouteRowsArgs& args) {
    check(args);
    if (args.num_rows == 0) return;
    launch<route_rows_kernel>(
        {.grid = dim3(narrow<unsigned>(args.num_rows)),
         .block = dim3(kThreads),
         .stream = args.stream,
         .starts_early = true},
        args.chosen,
        args.layer_stride,
        narrow<std::int32_t>(args.num_layers),
        narrow<std::int32_t>(args.per_token),
        args.token_rows,
        narrow<std::int32_t>(args.id_bytes),
        args.y
    );
}

}  // namespace pitstop::kernels
