#include "kernels/attention_cuda.h"

#include "kernels/attention.h"
#include "kernels/device/attention_index.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/launch.cuh"

#include <algorithm>
#include <limits>

namespace pitstop::kernels {
namespace {

enum class PrefillKernel : std::uint8_t { kMma, kWgmma };

bool fits_chunks(const AttentionArgs& args) {
    const KvCache& kv = args.kv;
    return args.q.dtype == DType::kBF16 && kv.dtype == DType::kBF16 &&
           (kv.head_dim == 64 || kv.head_dim == 128) &&
           args.num_q_heads / kv.num_kv_heads <= kAttentionGroupMax && args.scale > 0.f &&
           is_aligned(args.q.data, 16) && args.q.stride % 8 == 0 && is_aligned(kv.data, 16);
}

// Row numbers have 32 bits in every kernel: at 64 elements per row, 256 GiB of a layer's bf16.
bool fits_row_numbers(const KvCache& kv) {
    const std::int64_t kv_rows = std::int64_t{kv.num_pages} * 2 * kv.num_kv_heads * kv.page_size;
    return kv_rows <= std::numeric_limits<std::int32_t>::max();
}

AttentionParams params_of(const AttentionArgs& args) {
    const KvCache& kv = args.kv;
    return {
        .q = args.q.data,
        .q_stride = args.q.stride,
        .q_dtype = args.q.dtype,
        .out = args.out.data,
        .out_stride = args.out.stride,
        .out_dtype = args.out.dtype,
        .kv = kv.data,
        .page_rows = 2 * kv.num_kv_heads * kv.page_size,
        .value_rows = kv.num_kv_heads * kv.page_size,
        .page_size = FastDiv(kv.page_size),
        .head_dim = kv.head_dim,
        .num_rows = args.num_rows,
        .num_tokens = narrow<std::int32_t>(args.q.rows),
        .num_kv_heads = kv.num_kv_heads,
        .group = args.num_q_heads / kv.num_kv_heads,
        .q_starts = args.q_starts,
        .kv_lens = args.kv_lens,
        .pages = args.pages,
        .page_starts = args.page_starts,
        .window = args.window,
        .scale = args.scale,
        .scale_log2 = args.scale * 1.44269504088896340736f,
    };
}

std::int64_t num_blocks_of_decode(std::int32_t head_dim) {
    const std::int64_t num =
        std::int64_t{num_multiprocessors()} * decode_warps_per_multiprocessor(head_dim);
    return std::min(num, AttentionArgs::kArrivals);
}

// Assigns decode its part of the workspace; false if it does not fit.
bool place_records(AttentionParams& params, const AttentionArgs& args) {
    const std::int64_t record_bytes = decode_record_floats(params.group, params.head_dim) * 4;
    const std::int64_t num_blocks = num_blocks_of_decode(params.head_dim);
    params.num_decode_blocks = narrow<std::int32_t>(num_blocks);
    params.records = static_cast<float*>(args.workspace.data);
    params.num_records = args.workspace.bytes / record_bytes;
    if (args.arrivals != nullptr) {
        params.num_prefill_blocks = std::min<std::int64_t>(
            num_multiprocessors(),
            args.workspace.bytes / (4 * prefill_record_floats(params.head_dim))
        );
    }
    params.arrivals = args.arrivals;
    return args.arrivals != nullptr && params.num_records >= 2 * num_blocks;
}

void run(const AttentionArgs& args, AttentionOrder order, PrefillKernel prefill) {
    check(args);
    if (args.q.rows == 0 || args.num_rows == 0) return;
    CHECK(fits_row_numbers(args.kv));
    AttentionParams params = params_of(args);
    if (!fits_chunks(args)) {
        attention_general_cuda(params, args.stream);
        return;
    }
    params.order = order;
    const bool has_decode = place_records(params, args);
    params.q_len_min = has_decode ? 2 : 1;
    if (has_decode) attention_decode_cuda(params, args.stream);
    const bool has_prefill = args.q_len_max == 0 || args.q_len_max >= params.q_len_min;
    if (!has_prefill) return;
    if (prefill == PrefillKernel::kWgmma) {
        CHECK(order == AttentionOrder::kFree);
        attention_prefill_wgmma_cuda(params, args.stream);
    } else {
        attention_prefill_cuda(params, order, args.stream);
    }
}

}  // namespace

void attention_cuda(const AttentionArgs& args) {
    run(args,
        AttentionOrder::kFree,
        compute_capability() == kHopper ? PrefillKernel::kWgmma : PrefillKernel::kMma);
}

void attention_cuda_mma(const AttentionArgs& args) {
    run(args, AttentionOrder::kFree, PrefillKernel::kMma);
}

void attention_cuda_deterministic(const AttentionArgs& args) {
    run(args, AttentionOrder::kFixed, PrefillKernel::kMma);
}

std::int64_t attention_cuda_workspace_bytes(const AttentionShape& shape) {
    // In fixed order, each segment of each token has a record, and each block has two more.
    const std::int64_t num_segments = ceil_div(shape.kv_len_max, AttentionArgs::kSegmentKeys);
    const std::int64_t group_max = std::min(shape.num_q_heads, kAttentionGroupMax);
    const std::int64_t D = shape.head_dim;
    return std::min(
        kAttentionCudaWorkspaceMax,
        4 * (2 * num_blocks_of_decode(shape.head_dim) * decode_record_floats(group_max, D) +
             shape.num_tokens * num_segments * decode_record_floats(shape.num_q_heads, D))
    );
}

}  // namespace pitstop::kernels
