// Copies rectangles of checkpoint tensors into this rank's bf16 weights, converting on the way:
//   dst[r, c] = bf16(src[r, c])
// F32 and F16 are rounded to the nearest bf16, ties to even; denormals are kept, NaN stays NaN;
// BF16 is copied bit for bit. Row-parallel weights are column ranges, hence the strides.
//
//   src  [rows, cols]  kF32, kF16 or kBF16, any alignment (safetensors guarantees none)
//   dst  [rows, cols]  bf16; overlaps nothing
#pragma once

#include "kernels/tensor.h"

#include <span>

namespace pitstop::kernels {

struct ShardCopy {
    const void* src = nullptr;
    DType src_dtype = DType::kBF16;
    std::int64_t src_stride = 0;  // elements between rows
    View2<bf16> dst{};            // [rows, cols]
};

struct ShardCopyArgs {
    std::span<const ShardCopy> copies{};  // in host memory; one launch for hundreds of them
    // The most blocks of a launch on a GPU at a time, to leave room for other work. 0: no limit.
    int blocks_max = 0;
    Stream stream{};
};

void check(const ShardCopyArgs& args);
void shard_copy_ref(const ShardCopyArgs& args);
void shard_copy_cuda(const ShardCopyArgs& args);

}  // namespace pitstop::kernels
