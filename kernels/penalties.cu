#include "kernels/penalties.h"

#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;

// grid [R], block [kThreads]; a block owns a row, a thread an entry. Latency-bound: a few hundred
// scattered 4-byte reads and writes per row. An id may be in both lists; the barrier makes the
// counts' writes visible to the biases' reads. The arithmetic is spelled out so that it rounds as
// on the CPU: no product is fused into a difference. A mask makes the block pass over the whole
// row, adjacent threads over adjacent ids.
__global__ void __launch_bounds__(kThreads) penalties_kernel(
    float* __restrict__ logits,  // [R, V_rank]
    std::int64_t stride,
    std::int64_t num_ids,  // V_rank
    std::int64_t vocab_begin,
    const PenaltyRow* __restrict__ rows,            // [R]
    const std::int32_t* __restrict__ count_starts,  // [R + 1]
    const TokenCount* __restrict__ counts,
    const std::int32_t* __restrict__ bias_starts,  // [R + 1]
    const LogitBias* __restrict__ biases,
    const std::int32_t* __restrict__ mask_of,  // [R], or null
    const std::uint32_t* __restrict__ masks,   // [num_masks][mask_words]
    std::int64_t mask_words
) {
    const std::int64_t r = blockIdx.x;
    const int thread = static_cast<int>(threadIdx.x);
    float* const row_logits = logits + r * stride;
    const PenaltyRow row = rows[r];
    for (std::int32_t i = count_starts[r] + thread; i < count_starts[r + 1]; i += kThreads) {
        const TokenCount count = counts[i];
        const std::int64_t index = std::int64_t{raw(count.id)} - vocab_begin;
        if (index < 0 || index >= num_ids) continue;
        float l = row_logits[index];
        l = l > 0.f ? __fdiv_rn(l, row.repetition) : __fmul_rn(l, row.repetition);
        l = __fsub_rn(l, __fmul_rn(row.frequency, static_cast<float>(count.num_output)));
        if (count.num_output > 0) l = __fsub_rn(l, row.presence);
        row_logits[index] = l;
    }
    __syncthreads();
    for (std::int32_t i = bias_starts[r] + thread; i < bias_starts[r + 1]; i += kThreads) {
        const std::int64_t index = std::int64_t{raw(biases[i].id)} - vocab_begin;
        if (index >= 0 && index < num_ids)
            row_logits[index] = __fadd_rn(row_logits[index], biases[i].bias);
    }
    if (mask_of == nullptr || mask_of[r] < 0) return;
    __syncthreads();
    const std::uint32_t* const mask = masks + mask_of[r] * mask_words;
    for (std::int64_t index = thread; index < num_ids; index += kThreads) {
        const std::int64_t id = vocab_begin + index;
        if ((mask[id / 32] >> (id % 32) & 1) == 0) row_logits[index] = -INFINITY;
    }
}

}  // namespace

void penalties_cuda(const PenaltyArgs& args) {
    // check(args) cannot run here: it reads the starts, which are in device memory.
    CHECK(args.logits.rows == 0 || (args.logits.data != nullptr && args.rows != nullptr));
    CHECK(args.logits.rows == 0 || (args.count_starts != nullptr && args.bias_starts != nullptr));
    launch<penalties_kernel>(
        {.grid = dim3(narrow<unsigned>(args.logits.rows)),
         .block = dim3(kThreads),
         .stream = args.stream},
        args.logits.data,
        args.logits.stride,
        args.logits.cols,
        args.vocab_begin,
        args.rows,
        args.count_starts,
        args.counts,
        args.bias_starts,
        args.biases,
        args.mask_of,
        args.masks,
        args.mask_words
    );
}

}  // namespace pitstop::kernels
