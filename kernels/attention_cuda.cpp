#include "kernels/attention_cuda.h"

#include "kernels/attention.h"
#include "kernels/cuda_device.h"
#include "kernels/device/attention_index.h"
#include "kernels/device/launch.cuh"

#include <algorithm>

namespace pitstop::kernels {
namespace {

constexpr int kHopper = 90;  // the one that wgmma's machine code is for
enum class PrefillKernel : std::uint8_t { kMma, kWgmma };

bool fits_chunks(const AttentionArgs& args) {
    const KvCache& kv = args.kv;
    return args.q.dtype == DType::kBF16 && kv.dtype == DType::kBF16 &&
           (kv.head_dim == 64 || kv.head_dim == 128) &&
           args.num_q_heads / kv.num_kv_heads <= kAttentionGroupMax && args.scale > 0.f &&
           is_aligned(args.q.data, 16) && args.q.stride % 8 == 0 && is_aligned(kv.data, 16);
}

// A row's number is 32 bits in every kernel: at 64 elements a row, 256 GiB of a layer's bf16.
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

// Bytes of segments' results for R rows: a sum per dimension, a maximum and a sum of weights.
std::int64_t segment_bytes(
    std::int64_t num_rows,
    std::int64_t num_q_heads,
    std::int64_t head_dim,
    std::int64_t num_segments
) {
    return num_rows * num_q_heads * num_segments * (head_dim + 2) * 4;
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
    const bool is_fixed = order == AttentionOrder::kFixed;
    const std::int64_t num_pairs = std::int64_t{args.num_rows} * args.kv.num_kv_heads;
    const auto segments_of = [&](std::int32_t segment_keys) {
        return ceil_div(args.kv_len_max, segment_keys);
    };
    const auto fits = [&](std::int32_t segment_keys) {
        const std::int64_t num = segments_of(segment_keys);
        return num <= 1 || segment_bytes(args.num_rows, args.num_q_heads, args.kv.head_dim, num) <=
                               args.workspace.bytes;
    };
    params.segment_keys =
        is_fixed ? AttentionArgs::kSegmentKeys
                 : decode_segment_keys(
                       num_pairs, args.kv_len_max, AttentionArgs::kBlockKeys, kDecodeWarpsWanted
                   );
    // Where the workspace is too small, segments become longer, or, where their length is fixed,
    // prefill's kernel takes over, whose bits are the same and which needs none.
    while (!is_fixed && !fits(params.segment_keys)) {
        params.segment_keys += std::max(
            AttentionArgs::kBlockKeys,
            params.segment_keys / AttentionArgs::kBlockKeys / 2 * AttentionArgs::kBlockKeys
        );
    }
    const bool has_decode = fits(params.segment_keys);
    params.num_segments =
        narrow<std::int32_t>(std::max<std::int64_t>(1, segments_of(params.segment_keys)));
    params.segments = static_cast<float*>(args.workspace.data);
    params.q_len_min = has_decode ? 2 : 1;
    if (has_decode) attention_decode_cuda(params, args.stream);
    const bool has_prefill = args.q_len_max == 0 || args.q_len_max >= params.q_len_min;
    if (!has_prefill) return;
    if (prefill == PrefillKernel::kWgmma) {
        CHECK(!is_fixed);
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
    const std::int64_t num_segments = ceil_div(shape.kv_len_max, AttentionArgs::kSegmentKeys);
    return std::min(
        kAttentionCudaWorkspaceMax,
        segment_bytes(shape.num_tokens, shape.num_q_heads, shape.head_dim, num_segments)
    );
}

}  // namespace pitstop::kernels
