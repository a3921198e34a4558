#include "kernels/draws.h"

#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;

// grid [ceil(R / kThreads)], block [kThreads]; a thread owns a row. Latency-bound: about a hundred
// bytes per row.
__global__ void __launch_bounds__(kThreads) note_draws_kernel(
    const DrawnRow* __restrict__ rows,               // [R]
    const std::int32_t* __restrict__ num_nonfinite,  // [R]
    std::int64_t num_rows,
    TokenId* ids,     // [R]
    float* kept_mins  // [R] or null
) {
    const std::int64_t r = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (r >= num_rows) return;
    const DrawnRow row = rows[r];
    TokenId id{0};
    float kept_min = __uint_as_float(0xff800000u);
    if (row.choice != nullptr) {
        const Choice choice = *row.choice;
        kept_min = choice.kept_min;
        id = drawn_id(choice);
        if (row.pick != nullptr) row.pick->id = choice.id;
        if (row.softmax != nullptr) row.softmax->kept_min = choice.kept_min;
    }
    if (num_nonfinite[r] != 0) id = kNotFiniteDraw;
    if (row.token != nullptr) *row.token = id;
    ids[r] = id;
    if (kept_mins != nullptr) kept_mins[r] = kept_min;
}

}  // namespace

void note_draws_cuda(const NoteDrawsArgs& args) {
    check(args);
    launch<note_draws_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.num_rows, kThreads))),
         .block = dim3(kThreads),
         .stream = args.stream},
        args.rows,
        args.num_nonfinite,
        args.num_rows,
        args.ids,
        args.kept_mins
    );
}

}  // namespace pitstop::kernels
