#include "kernels/rope.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/fast_div.h"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;

// Parameters of both kernels. Heads of a token are numbered queries, then keys, then values.
struct Params {
    const void* q;
    const void* k;
    const void* v;
    void* q_out;
    void* kv;
    const std::int64_t* slots;      // [T]
    const std::int32_t* positions;  // [T]
    const float* cos;               // [positions, R/2]
    const float* sin;
    const bf16* q_norm;  // [D] or null
    const bf16* k_norm;
    float norm_offset;
    std::int64_t q_head_stride;                               // elements between a token's queries
    std::int64_t q_stride, k_stride, v_stride, q_out_stride;  // elements between tokens
    std::int64_t cos_stride, sin_stride;
    std::int64_t page_elements;
    FastDiv page_size;
    std::int32_t num_q_heads, num_kv_heads, head_dim, half;
    float norm_eps;
    DType in_dtype, q_out_dtype, kv_dtype;
};

__device__ float not_a_number() { return __uint_as_float(0x7fffffffu); }

// Returns NaN if the sum of squares is infinite or NaN, as in rmsnorm.
__device__ float scale_of(float sum_sq, int D, float eps) {
    const float scale = rsqrtf(sum_sq / static_cast<float>(D) + eps);
    return is_nonfinite(sum_sq) ? not_a_number() : scale;
}

// Returns the stored value of a key's element: NaN if the dtype has only an infinity for it. bf16
// has an infinity from 2^128 - 2^119 on.
__device__ float kept_key(float x, DType dtype) {
    const float limit = __uint_as_float(dtype == DType::kF32 ? 0x7f800000u : 0x7f7f8000u);
    return fabsf(x) < limit ? x : not_a_number();
}

// Where a head of a token is read from and written to, in elements.
struct Head {
    const void* from;
    std::int64_t from_index;
    const bf16* norm;  // null: none
    bool is_rotated;   // false for a value
    bool is_query;
    std::int64_t kv_index;  // of a key or value, from the start of its page

    __device__ bool is_key() const { return is_rotated && !is_query; }

    __device__ static Head of(const Params& p, std::int64_t t, int number) {
        const std::int64_t D = p.head_dim;
        if (number < p.num_q_heads)
            return {p.q, t * p.q_stride + number * p.q_head_stride, p.q_norm, true, true, 0};
        const bool is_value = number >= p.num_q_heads + p.num_kv_heads;
        const std::int64_t column = (number - p.num_q_heads - (is_value ? p.num_kv_heads : 0)) * D;
        const std::int64_t P = p.page_size.divisor();
        if (is_value) {
            return {
                p.v,
                t * p.v_stride + column,
                nullptr,
                false,
                false,
                (p.num_kv_heads * D + column) * P};
        }
        return {p.k, t * p.k_stride + column, p.k_norm, true, false, column * P};
    }
};

// Returns the place of a head in q_out or the KV memory, in elements. `slot` is the token's slot; a
// query does not use it.
__device__ std::int64_t place_of(
    const Params& p, const Head& head, std::int64_t t, int number, std::int64_t slot
) {
    if (head.is_query) return t * p.q_out_stride + std::int64_t{number} * p.head_dim;
    const std::int64_t page = p.page_size.quotient(static_cast<std::uint32_t>(slot));
    return page * p.page_elements + head.kv_index +
           (slot - page * p.page_size.divisor()) * p.head_dim;
}

constexpr int kPack = 8;  // elements of a lane: D / 8 neighbouring lanes have a head

// grid [T, ceil((Q + 2K) * D / 8 / kThreads)], block [kThreads]; D / 8 neighbouring lanes own a
// head of a token, so that the norm is a butterfly among them and a rotation's partner is the lane
// half of them away. Memory-bound: (Q + 2K) * D * 2 bytes in and out per token (bf16); qwen3-8b: 12
// KiB each way, 8k tokens 201 MB, 47 us at 4.3 TB/s. All heads of a token read the cosines from L1:
// 4 times as many bytes as the heads have in bf16. A thread has 16 bytes in flight, an SM 24 KiB at
// 6 blocks, twice the need when half of the traffic is reads. The loads of position, slot and head
// are issued together: a head load that waited for the others would start too late. q_out may be q:
// a lane writes what it alone read.
template <class In, int D>  // q_out and kv are bf16; R = D, rows 16-byte aligned
__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ Params p) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t t = blockIdx.x;
    constexpr int kLanesPerHead = D / kPack;  // 8, 16 or 32
    const int index = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
    const int num_heads = p.num_q_heads + 2 * p.num_kv_heads;
    const bool is_here = index / kLanesPerHead < num_heads;
    // Lanes beyond the last head process that head, too, for the shuffles, and store nothing.
    const int number = min(index / kLanesPerHead, num_heads - 1);
    const Head head = Head::of(p, t, number);
    const int i = index % kLanesPerHead * kPack;
    float x[kPack];
    load_floats(static_cast<const In*>(head.from) + head.from_index + i, x);
    const std::int64_t position = p.positions[t];
    const std::int64_t slot = p.slots[t];

    float sum_sq = 0.f;
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum_sq = fmaf(x[k], x[k], sum_sq);
    sum_sq = warp_sum<kLanesPerHead>(sum_sq);
    if (head.norm != nullptr) {
        const float scale = scale_of(sum_sq, D, p.norm_eps);
        float weights[kPack];
        load_floats(head.norm + i, weights);
#pragma unroll
        for (int k = 0; k < kPack; ++k) x[k] *= scale * (p.norm_offset + weights[k]);
    }

    const bool is_first_half = i < D / 2;
    float partner[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k)
        partner[k] = __shfl_xor_sync(kAllLanes, x[k], kLanesPerHead / 2);
    if (head.is_rotated) {
        const int column = is_first_half ? i : i - D / 2;
        float cos[kPack];
        float sin[kPack];
        load_floats(p.cos + position * p.cos_stride + column, cos);
        load_floats(p.sin + position * p.sin_stride + column, sin);
#pragma unroll
        for (int k = 0; k < kPack; ++k)
            x[k] = x[k] * cos[k] + (is_first_half ? -partner[k] : partner[k]) * sin[k];
    }
    // Also for queries and values: harmless there, while a condition would need registers.
#pragma unroll
    for (int k = 0; k < kPack; ++k) x[k] = kept_key(x[k], DType::kBF16);
    bf16* const to = static_cast<bf16*>(head.is_query ? p.q_out : p.kv);
    if (is_here) store_floats(to + place_of(p, head, t, number, slot) + i, x);
}

constexpr int kGeneralWarps = 4;
constexpr int kGeneralHeadDimMax = 1024;

__device__ float load_as(const void* from, DType dtype, std::int64_t index) {
    return dtype == DType::kF32 ? static_cast<const float*>(from)[index]
                                : to_float(static_cast<const bf16*>(from)[index]);
}
__device__ void store_as(void* to, DType dtype, std::int64_t index, float value) {
    if (dtype == DType::kF32) {
        static_cast<float*>(to)[index] = value;
    } else {
        static_cast<bf16*>(to)[index] = to_bf16(value);
    }
}

// For any D, R, dtype and alignment. grid [T, ceil((Q + 2K) / kGeneralWarps)], block [4 warps]; a
// warp owns a head of a token and stages it in shared memory, where the rotation finds its partner.
__global__ void __launch_bounds__(kGeneralWarps* kWarp)
    rope_general_kernel(const __grid_constant__ Params p) {
    __shared__ float heads[kGeneralWarps][kGeneralHeadDimMax];
    const std::int64_t t = blockIdx.x;
    const int head_index = static_cast<int>(blockIdx.y) * kGeneralWarps + warp_index();
    if (head_index >= p.num_q_heads + 2 * p.num_kv_heads) return;  // whole warps leave
    const Head head = Head::of(p, t, head_index);
    void* const to = head.is_query ? p.q_out : p.kv;
    const DType to_dtype = head.is_query ? p.q_out_dtype : p.kv_dtype;
    const std::int64_t to_index = place_of(p, head, t, head_index, p.slots[t]);
    float* const x = heads[warp_index()];
    float sum_sq = 0.f;
    for (int i = lane_index(); i < p.head_dim; i += kWarp) {
        x[i] = load_as(head.from, p.in_dtype, head.from_index + i);
        sum_sq = fmaf(x[i], x[i], sum_sq);
    }
    sum_sq = warp_sum(sum_sq);
    if (head.norm != nullptr) {
        const float scale = scale_of(sum_sq, p.head_dim, p.norm_eps);
        for (int i = lane_index(); i < p.head_dim; i += kWarp)
            x[i] *= scale * (p.norm_offset + to_float(head.norm[i]));
    }
    __syncwarp();
    const std::int64_t position = p.positions[t];
    for (int i = lane_index(); i < p.head_dim; i += kWarp) {
        float out = x[i];
        if (head.is_rotated && i < 2 * p.half) {
            const bool is_first_half = i < p.half;
            const int column = is_first_half ? i : i - p.half;
            const float partner = is_first_half ? -x[i + p.half] : x[i - p.half];
            out = x[i] * p.cos[position * p.cos_stride + column] +
                  partner * p.sin[position * p.sin_stride + column];
        }
        store_as(to, to_dtype, to_index + i, head.is_key() ? kept_key(out, to_dtype) : out);
    }
}

bool is_aligned_16(const ConstActView& v) {
    return is_aligned(v.data, 16) && v.stride * size_of(v.dtype) % 16 == 0;
}

}  // namespace

void rope_cuda(const RopeArgs& args) {
    check(args);
    const KvCache& kv = args.kv;
    const int D = kv.head_dim;
    CHECK(D <= kGeneralHeadDimMax);
    CHECK(std::int64_t{kv.num_pages} * kv.page_size <= FastDiv::kDividendMax);  // slots
    const Params params{
        .q = args.q.data,
        .k = args.k.data,
        .v = args.v.data,
        .q_out = args.q_out.data,
        .kv = kv.data,
        .slots = args.slots,
        .positions = args.positions,
        .cos = args.cos.data,
        .sin = args.sin.data,
        .q_norm = args.q_norm,
        .k_norm = args.k_norm,
        .norm_offset = args.norm_offset,
        .q_head_stride = q_head_stride_of(args),
        .q_stride = args.q.stride,
        .k_stride = args.k.stride,
        .v_stride = args.v.stride,
        .q_out_stride = args.q_out.stride,
        .cos_stride = args.cos.stride,
        .sin_stride = args.sin.stride,
        .page_elements = page_elements(kv),
        .page_size = FastDiv(kv.page_size),
        .num_q_heads = narrow<std::int32_t>(args.q_out.cols / D),
        .num_kv_heads = kv.num_kv_heads,
        .head_dim = D,
        .half = narrow<std::int32_t>(args.cos.cols),
        .norm_eps = args.norm_eps,
        .in_dtype = args.q.dtype,
        .q_out_dtype = args.q_out.dtype,
        .kv_dtype = kv.dtype};
    const int num_heads = params.num_q_heads + 2 * params.num_kv_heads;
    const bool is_plain =
        (D == 64 || D == 128 || D == 256) && 2 * params.half == D &&
        args.q_out.dtype == DType::kBF16 && kv.dtype == DType::kBF16 && is_aligned_16(args.q) &&
        q_head_stride_of(args) % kPack == 0 && is_aligned_16(args.k) && is_aligned_16(args.v) &&
        is_aligned_16(args.q_out) && is_aligned(kv.data, 16) && is_aligned(args.cos.data, 16) &&
        args.cos.stride % 4 == 0 && is_aligned(args.sin.data, 16) && args.sin.stride % 4 == 0 &&
        is_aligned(args.q_norm, 16) && is_aligned(args.k_norm, 16);
    const auto T = narrow<unsigned>(args.q.rows);
    if (!is_plain) {
        launch<rope_general_kernel>(
            {.grid = dim3(T, narrow<unsigned>(ceil_div(num_heads, kGeneralWarps))),
             .block = dim3(kGeneralWarps * kWarp),
             .stream = args.stream},
            params
        );
        return;
    }
    const Launch where{
        .grid = dim3(T, narrow<unsigned>(ceil_div(std::int64_t{num_heads} * D / kPack, kThreads))),
        .block = dim3(kThreads),
        .stream = args.stream,
        .starts_early = true};
    const auto run = [&]<int kHeadDim>() {
        args.q.dtype == DType::kBF16 ? launch<rope_kernel<bf16, kHeadDim>>(where, params)
                                     : launch<rope_kernel<float, kHeadDim>>(where, params);
    };
    if (D == 64) return run.operator()<64>();
    if (D == 128) return run.operator()<128>();
    run.operator()<256>();
}

}  // namespace pitstop::kernels
