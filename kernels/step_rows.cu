#include "kernels/step_rows.h"

#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 512;

// grid [1], block [kThreads]; all threads share a run of pages, and a thread owns a row.
// Latency-bound: a step of decodes adds a page for some of its rows; a request that begins to
// decode adds all of its pages once, 8 KB for 32k tokens. Rows read the tables after the barrier.
__global__ void __launch_bounds__(kThreads)
    step_rows_kernel(const __grid_constant__ StepRowsArgs args) {
    const std::int32_t* const words = args.update;
    const StepUpdate update = StepUpdate::read(words);
    const int thread = static_cast<int>(threadIdx.x);
    for (std::int32_t run = 0; run < update.num_runs; ++run) {
        const std::int32_t* const of = words + update.runs_at() + StepUpdate::kRunWords * run;
        const std::int32_t* const pages = words + update.pages_at() + of[2];
        for (std::int32_t i = thread; i < of[1]; i += kThreads)
            args.tables[std::int64_t{of[0]} + i] = static_cast<PageId>(pages[i]);
    }
    __syncthreads();
    const std::int32_t P = args.page_size;
    for (std::int32_t r = thread; r < args.num_rows; r += kThreads) {
        if (r >= update.num_rows) {
            const std::int32_t i = r - update.num_rows;
            args.tokens[r] = TokenId{-1};
            args.positions[r] = 0;
            args.page_starts[r] = args.num_slots * args.slot_pages + i / P;
            args.kv_lens[r] = 1;
            args.kv_slots[r] = std::int64_t{args.scratch_page} * P + i;
            continue;
        }
        std::int32_t position = 0;
        std::int32_t page_start = 0;
        if (update.num_given > 0) {
            position = words[update.positions_at() + r];
            page_start = words[update.slots_at() + r] * args.slot_pages;
            args.tokens[r] = static_cast<TokenId>(words[update.tokens_at() + r]);
            args.page_starts[r] = page_start;
        } else {
            position = args.positions[r] + 1;
            page_start = args.page_starts[r];
        }
        const PageId page = args.tables[std::int64_t{page_start} + position / P];
        args.positions[r] = position;
        args.kv_lens[r] = position + 1;
        args.kv_slots[r] = std::int64_t{raw(page)} * P + position % P;
    }
}

}  // namespace

void step_rows_cuda(const StepRowsArgs& args) {
    check(args);
    launch<step_rows_kernel>(
        {.grid = dim3(1), .block = dim3(kThreads), .stream = args.stream}, args
    );
}

}  // namespace pitstop::kernels
