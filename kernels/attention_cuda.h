// The parts of the CUDA attention; only for attention_*.cu and attention_cuda.cpp.
#pragma once

#include "kernels/attention.h"
#include "kernels/device/fast_div.h"

#include <cstdint>

namespace pitstop::kernels {

inline constexpr std::int32_t kAttentionGroupMax = 16;  // query heads per KV head: rows of an mma

// Returns how many decode warps fit into a multiprocessor's shared memory: decode launches that
// many, and each gets an equal share of the work.
[[nodiscard]] constexpr std::int32_t decode_warps_per_multiprocessor(std::int32_t head_dim) {
    return head_dim == 128 ? 6 : 12;
}

// A record has the state of one (row, KV head) pair over some of its keys. For each query head of
// the group: D sums, the maximum, the sum of weights, and six unused floats, which shift the heads
// of a record by a quarter of the banks of shared memory.
[[nodiscard]] constexpr std::int64_t decode_record_floats(
    std::int64_t group, std::int64_t head_dim
) {
    return group * (head_dim + 8);
}

// The state of a prefill tile's rows over a part of its keys: for each row D sums, the maximum, the
// sum of weights, and six unused floats.
inline constexpr std::int32_t kPrefillTileRows = 128;  // rows of a tile of the wgmma kernel
[[nodiscard]] constexpr std::int64_t prefill_record_floats(std::int64_t head_dim) {
    return kPrefillTileRows * (head_dim + 8);
}
// Returns how many blocks may share a tile's keys, if num_tiles are launched and num_blocks run at
// once.
[[nodiscard]] constexpr std::int64_t prefill_parts_max(
    std::int64_t num_tiles, std::int64_t num_blocks
) {
    constexpr std::int64_t kPartsMax = 8;
    const std::int64_t parts = num_tiles == 0 ? 1 : num_blocks / num_tiles;
    return parts < 1 ? 1 : parts > kPartsMax ? kPartsMax : parts;
}

enum class AttentionOrder : std::uint8_t {
    kFree,   // the split depends on the batch
    kFixed,  // segments of kSegmentKeys by absolute position, merged in ascending order (P6)
};

// A row of KV memory is one key or value: head_dim elements. A page has page_rows of them: head h's
// keys from h * P on, its values value_rows later.
struct AttentionParams {
    const void* q = nullptr;  // [T, Q*D]
    std::int64_t q_stride = 0;
    DType q_dtype = DType::kBF16;
    void* out = nullptr;  // [T, Q*D]
    std::int64_t out_stride = 0;
    DType out_dtype = DType::kBF16;
    const void* kv = nullptr;
    std::int32_t page_rows = 0;
    std::int32_t value_rows = 0;
    FastDiv page_size{};
    std::int32_t head_dim = 0;
    std::int32_t num_rows = 0;    // R
    std::int32_t num_tokens = 0;  // T
    std::int32_t num_kv_heads = 0;
    std::int32_t group = 0;  // query heads per KV head
    const std::int32_t* q_starts = nullptr;
    const std::int32_t* kv_lens = nullptr;
    const PageId* pages = nullptr;
    const std::int32_t* page_starts = nullptr;
    std::int32_t window = 0;
    float scale = 0.f;
    float scale_log2 = 0.f;  // scale * log2(e)

    std::int32_t q_len_min = 1;                    // prefill skips rows with fewer new tokens
    AttentionOrder order = AttentionOrder::kFree;  // decode's order; prefill gets an argument
    std::int32_t num_decode_blocks = 0;
    float* records = nullptr;           // decode: [num_records, decode_record_floats()], aligned 16
    std::int64_t num_records = 0;       // decode: at least two per block
    std::uint32_t* arrivals = nullptr;  // decode: [num_decode_blocks], zeros before and after
    // Prefill by wgmma: how many blocks run at once, at most one per multiprocessor. `records` has
    // prefill_record_floats() for each of them. 0: no blocks share a tile's keys. Each tile has one
    // entry of `arrivals`.
    std::int64_t num_prefill_blocks = 0;
};

// Computes the rows with at least q_len_min new tokens. REQUIRES (here and below): bf16 q and KV, D
// 64 or 128, a group of at most kAttentionGroupMax, q and KV rows 16-byte aligned.
void attention_prefill_cuda(const AttentionParams& params, AttentionOrder order, Stream stream);
// attention_prefill_cuda() by wgmma, in free order. REQUIRES: compute capability 9.0.
void attention_prefill_wgmma_cuda(const AttentionParams& params, Stream stream);
// Computes the rows with one new token.
void attention_decode_cuda(const AttentionParams& params, Stream stream);
// Computes all rows; any dtype, D <= kHeadDimMax, group and alignment.
void attention_general_cuda(const AttentionParams& params, Stream stream);

// attention_cuda() with mma.sync even if the GPU has wgmma, for tests and comparisons.
void attention_cuda_mma(const AttentionArgs& args);

}  // namespace pitstop::kernels
