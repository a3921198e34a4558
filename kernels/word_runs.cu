#include "kernels/word_runs.h"

#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;

// grid [1], block [kThreads]; a warp owns every eighth run, a lane every 32nd word of it.
// Latency-bound: runs have about ten words each, a few for each row of a step that changed.
__global__ void __launch_bounds__(kThreads)
    word_runs_kernel(const __grid_constant__ WordRunsArgs args) {
    const WordUpdate update = WordUpdate::read(args.update);
    const std::int32_t* const values = args.update + update.values_at();
    const int thread = static_cast<int>(threadIdx.x);
    for (std::int32_t run = thread / kWarp; run < update.num_runs; run += kThreads / kWarp) {
        const std::int32_t* const of =
            args.update + WordUpdate::kWords + WordUpdate::kRunWords * run;
        for (std::int32_t i = thread % kWarp; i < of[1]; i += kWarp)
            args.words[std::int64_t{of[0]} + i] = values[std::int64_t{of[2]} + i];
    }
}

}  // namespace

void word_runs_cuda(const WordRunsArgs& args) {
    check(args);
    launch<word_runs_kernel>(
        {.grid = dim3(1), .block = dim3(kThreads), .stream = args.stream}, args
    );
}

}  // namespace pitstop::kernels
