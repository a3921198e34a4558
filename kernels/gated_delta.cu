#include "kernels/gated_delta.h"

#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

#include <cmath>

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPer = 32;    // rows of S in a thread's registers
constexpr int kPack = 4;    // neighbouring rows of S of a thread
constexpr int kChunk = 16;  // tokens whose inputs are prepared at once
constexpr int kKeptMax = GatedDeltaArgs::kKernelMax - 1;

__device__ float not_a_number() { return __uint_as_float(0x7fffffffu); }
// Returns 0 for a number, NaN for an infinity or a NaN.
__device__ float nan_or_zero(float x) { return x - x; }
__device__ float silu(float x) { return x / (1.f + expf(-x)); }
__device__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)) + nan_or_zero(x); }
__device__ float softplus(float x) { return (x > 20.f ? x : log1pf(expf(x))) + nan_or_zero(x); }
__device__ float inverse_root(float sum, float eps) {
    return is_nonfinite(sum) ? not_a_number() : rsqrtf(sum + eps);
}

__device__ std::int64_t begin_of(const HeadColumns& columns, std::int64_t head) {
    return head / columns.group_len * columns.group_stride +
           head % columns.group_len * columns.first.cols;
}
template <class T>
__device__ T* at_place(void* first, std::int64_t place_bytes, std::int32_t place) {
    return reinterpret_cast<T*>(static_cast<char*>(first) + place * place_bytes);
}

// One row's tokens and places.
struct Row {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    std::int32_t place = 0;  // -1: a row of padding, which stores nothing
    std::int32_t from = 0;
    std::int32_t saved = 0;
    std::int32_t saved_end = 0;
    bool is_new = true;

    // REQUIRES: the row has tokens.
    __device__ static Row of(const GatedDeltaArgs& args, std::int64_t r) {
        const std::int32_t begin = args.q_starts[r];
        return {
            begin,
            args.q_starts[r + 1],
            args.places[r],
            args.from_places[r],
            args.saved_places[r],
            args.saved_ends[r],
            args.positions[begin] == 0};
    }
};

// The inputs of the convolution for a row, and its weights.
template <class X>
struct Inputs {
    const X* kept = nullptr;  // [W-1, C], before the row's first token; null: zeros
    std::int64_t num_channels = 0;
    const bf16* weights = nullptr;  // [C, W]
    int W = 0;
    std::int32_t begin = 0;

    __device__ Inputs(const GatedDeltaArgs& args, const Row& row)
        : kept(row.is_new ? nullptr : at_place<const X>(args.inputs, args.place_bytes, row.from)),
          num_channels(args.conv.rows),
          weights(args.conv.data),
          W(static_cast<int>(args.conv.cols)),
          begin(row.begin) {}

    // Returns channel c of the input of token `token`: of a kept input if the token precedes the
    // row's first one.
    __device__ float at(const X* column, std::int64_t stride, std::int32_t token, std::int64_t c)
        const {
        if (token >= begin) return load_float(column + token * stride);
        if (kept == nullptr) return 0.f;
        return load_float(kept + (W - 1 + token - begin) * num_channels + c);
    }
    // Returns silu of the convolution of channel c at token t. `column` has the channel's inputs.
    __device__ float convolved(const X* column, std::int64_t stride, std::int32_t t, std::int64_t c)
        const {
        float sum = 0.f;
        for (int j = 0; j < W; ++j)
            sum = fmaf(to_float(weights[c * W + j]), at(column, stride, t - (W - 1) + j, c), sum);
        return silu(sum);
    }
};

// The operands of the recurrence for a chunk's tokens. Keys beyond dk are zeros.
template <int kParts>       // threads of a column of S
struct alignas(16) Chunk {  // load_floats() reads four at once
    static constexpr int kKeysMax = kPer * kParts;
    static constexpr int kColumns = kThreads / kParts;
    float q[kChunk][kKeysMax];
    float k[kChunk][kKeysMax];
    float v[kChunk][kColumns];
    float decay[kChunk];
    float beta[kChunk];
};

// A warp's query or key of token t: convolved, with norm `factor`.
template <int kParts, class X>
__device__ void prepare_key(
    const Inputs<X>& inputs,
    const HeadColumns& columns,
    std::int64_t key_head,
    std::int64_t first_channel,
    std::int32_t t,
    float factor,
    float* to
) {
    const int dk = static_cast<int>(columns.first.cols);
    const X* const x = static_cast<const X*>(columns.first.data) + begin_of(columns, key_head);
    constexpr int kPerLane = kPer * kParts / kWarp;
    float numbers[kPerLane];
    float sum_sq = 0.f;
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
        const int i = lane_index() + m * kWarp;
        numbers[m] =
            i < dk ? inputs.convolved(x + i, columns.first.stride, t, first_channel + i) : 0.f;
        sum_sq = fmaf(numbers[m], numbers[m], sum_sq);
    }
    const float scale = inverse_root(warp_sum(sum_sq), GatedDeltaArgs::kNormEps) * factor;
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) to[lane_index() + m * kWarp] = numbers[m] * scale;
}

// The inputs of the recurrence, for one head of a row.
template <class X>
struct Head {
    const GatedDeltaArgs& args;
    Inputs<X> inputs;
    std::int64_t head = 0;
    float query_factor = 0.f;

    template <int kParts>
    __device__ void prepare(std::int32_t begin, int num, int c0, Chunk<kParts>& chunk) const {
        const std::int64_t dk = args.q.first.cols;
        const std::int64_t dv = args.v.first.cols;
        const std::int64_t key_head = head / (args.num_value_heads / args.num_key_heads);
        const std::int64_t num_keys = args.num_key_heads * dk;
        const X* const v = static_cast<const X*>(args.v.first.data) + begin_of(args.v, head);
        const X* const a = static_cast<const X*>(args.a.first.data) + begin_of(args.a, head);
        const X* const b = static_cast<const X*>(args.b.first.data) + begin_of(args.b, head);
        for (int i = warp_index(); i < num; i += kWarps) {
            const std::int32_t t = begin + i;
            prepare_key<kParts>(
                inputs, args.q, key_head, key_head * dk, t, query_factor, chunk.q[i]
            );
            prepare_key<kParts>(
                inputs, args.k, key_head, num_keys + key_head * dk, t, 1.f, chunk.k[i]
            );
            if (const int c = c0 + lane_index(); lane_index() < Chunk<kParts>::kColumns) {
                const std::int64_t channel = 2 * num_keys + head * dv + c;
                chunk.v[i][lane_index()] =
                    c < dv ? inputs.convolved(v + c, args.v.first.stride, t, channel) : 0.f;
            }
            if (lane_index() != 0) continue;
            const float bias = to_float(args.dt_bias[head]);
            const float time = softplus(load_float(a + t * args.a.first.stride) + bias);
            chunk.decay[i] = expf(-expf(args.a_log[head]) * time);
            chunk.beta[i] = sigmoid(load_float(b + t * args.b.first.stride));
        }
    }
};

// A thread's part of a column of S. All threads of a column compute the same bits for a sum over
// it.
template <int kParts>
struct Column {
    float s[kPer];
    int part = 0;
    int num_rows = 0;         // dk, or 0: a thread without a column
    std::int64_t stride = 0;  // dv

    __device__ int row_of(int j) const {
        return j / kPack * (kPack * kParts) + part * kPack + j % kPack;
    }
    // `from` is the column's first element; null: zeros.
    __device__ void load(const float* from) {
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            const int i = row_of(j);
            s[j] = from != nullptr && i < num_rows ? from[i * stride] : 0.f;
        }
    }
    __device__ void store(float* to) const {
#pragma unroll
        for (int j = 0; j < kPer; ++j)
            if (const int i = row_of(j); i < num_rows) to[i * stride] = s[j];
    }
    __device__ float times(const float* key) const {
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < kPer; j += kPack) {
            float k[kPack];
            load_floats(key + row_of(j), k);
#pragma unroll
            for (int e = 0; e < kPack; ++e) sum = fmaf(k[e], s[j + e], sum);
        }
        return warp_sum<kParts>(sum);
    }
    // S <- decay S + k delta. Returns q S, and sums k_next S, as times() would.
    __device__ float step(
        float decay,
        float delta,
        const float* key,
        const float* query,
        const float* next_key,
        float& next
    ) {
        float out = 0.f;
        float known = 0.f;
#pragma unroll
        for (int j = 0; j < kPer; j += kPack) {
            float q[kPack];
            float k[kPack];
            float k_next[kPack];
            load_floats(query + row_of(j), q);
            load_floats(key + row_of(j), k);
            load_floats(next_key + row_of(j), k_next);
#pragma unroll
            for (int e = 0; e < kPack; ++e) {
                s[j + e] = fmaf(k[e], delta, decay * s[j + e]);
                out = fmaf(q[e], s[j + e], out);
                known = fmaf(k_next[e], s[j + e], known);
            }
        }
        next = warp_sum<kParts>(known);
        return warp_sum<kParts>(out);
    }
};

// grid [R, nv, ceil(dv / kColumns)], block [kThreads]; a block owns kColumns columns of a row's
// state of one head, and keeps them in registers through all tokens: thread (column c, part p) has
// rows i with i / 4 % kParts = p. Leaves q S in y. Each block convolves its head's query and key
// again: 2 dk W products in addition to the recurrence's 4 dk kColumns. One token is memory-bound:
// 8 dk dv bytes of state per row and head. Many tokens are bound by the latency of each: two
// parallel chains of kPer fused products, and two exchanges. More tokens per second need more rows
// or heads. Not measured.
template <class X, class Y, int kParts>  // dk <= kPer * kParts
__global__ void __launch_bounds__(kThreads)
    recur_kernel(const __grid_constant__ GatedDeltaArgs args, float query_factor) {
    constexpr int kColumns = Chunk<kParts>::kColumns;
    __shared__ Chunk<kParts> chunk;
    const std::int64_t r = blockIdx.x;
    if (args.q_starts[r] == args.q_starts[r + 1]) return;
    const Row row = Row::of(args, r);
    const Head<X> head{args, Inputs<X>(args, row), blockIdx.y, query_factor};
    const int dk = static_cast<int>(args.q.first.cols);
    const int dv = static_cast<int>(args.v.first.cols);
    const int c0 = static_cast<int>(blockIdx.z) * kColumns;
    const int in_block = static_cast<int>(threadIdx.x) / kParts;
    const int c = c0 + in_block;
    const std::int64_t state_at = head.head * dk * dv + c;
    const auto state_of = [&](std::int32_t place) {
        return at_place<float>(args.states, args.place_bytes, place) + state_at;
    };
    Column<kParts> column;
    column.part = static_cast<int>(threadIdx.x) % kParts;
    column.num_rows = c < dv ? dk : 0;
    column.stride = dv;
    column.load(row.is_new ? nullptr : state_of(row.from));
    Y* const y = static_cast<Y*>(args.y.data) + head.head * dv + c;
    for (std::int32_t begin = row.begin; begin < row.end; begin += kChunk) {
        const int num = min(kChunk, row.end - begin);
        __syncthreads();  // the chunk before was read
        head.prepare(begin, num, c0, chunk);
        __syncthreads();
        // step() sums k S of the next token while S is in registers; times() has the same order.
        float known = column.times(chunk.k[0]);
        for (int i = 0; i < num; ++i) {
            const float decay = chunk.decay[i];
            const float delta = chunk.beta[i] * fmaf(-decay, known, chunk.v[i][in_block]);
            const float* const next_key = chunk.k[min(i + 1, num - 1)];
            const float out = column.step(decay, delta, chunk.k[i], chunk.q[i], next_key, known);
            const std::int32_t t = begin + i;
            if (column.part == 0 && c < dv) store_float(y + t * args.y.stride, out);
            if (t + 1 == row.saved_end) column.store(state_of(row.saved));
        }
    }
    if (row.place >= 0) column.store(state_of(row.place));
}

// grid [ceil(T * nv / kWarps)], block [kThreads]; a warp owns a head of a token. Memory-bound: z
// and y in, y out.
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const __grid_constant__ GatedDeltaArgs args) {
    const std::int64_t index = std::int64_t{blockIdx.x} * kWarps + warp_index();
    const std::int64_t t = index / args.num_value_heads;
    const std::int64_t head = index % args.num_value_heads;
    if (t >= args.y.rows) return;  // whole warps leave
    const int dv = static_cast<int>(args.v.first.cols);
    Y* const y = static_cast<Y*>(args.y.data) + t * args.y.stride + head * dv;
    const X* const z =
        static_cast<const X*>(args.z.first.data) + t * args.z.first.stride + begin_of(args.z, head);
    float sum_sq = 0.f;
    for (int i = lane_index(); i < dv; i += kWarp) {
        const float x = load_float(y + i);
        sum_sq = fmaf(x, x, sum_sq);
    }
    const float scale = inverse_root(warp_sum(sum_sq) / static_cast<float>(dv), args.norm_eps);
    for (int i = lane_index(); i < dv; i += kWarp) {
        const float normed = load_float(y + i) * scale * to_float(args.norm_w[i]);
        store_float(y + i, normed * silu(load_float(z + i)));
    }
}

// grid [ceil(C / kThreads), R], block [kThreads]; a thread owns a channel of a row, and reads all
// inputs before it stores one, so that kept inputs may move within a place. Memory-bound.
template <class X>
__global__ void __launch_bounds__(kThreads)
    keep_inputs_kernel(const __grid_constant__ GatedDeltaArgs args) {
    const std::int64_t r = blockIdx.y;
    const std::int64_t c = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (args.q_starts[r] == args.q_starts[r + 1] || c >= args.conv.rows) return;
    const Row row = Row::of(args, r);
    if (row.place < 0) return;
    const Inputs<X> inputs(args, row);
    const std::int64_t dk = args.q.first.cols;
    const std::int64_t dv = args.v.first.cols;
    const std::int64_t num_keys = args.num_key_heads * dk;
    const HeadColumns& columns = c < num_keys ? args.q : c < 2 * num_keys ? args.k : args.v;
    const std::int64_t dim = c < 2 * num_keys ? dk : dv;
    const std::int64_t in_block = c < num_keys       ? c
                                  : c < 2 * num_keys ? c - num_keys
                                                     : c - 2 * num_keys;
    const X* const x = static_cast<const X*>(columns.first.data) +
                       begin_of(columns, in_block / dim) + in_block % dim;
    const auto keep = [&](std::int32_t end, std::int32_t place) {
        float numbers[kKeptMax];
#pragma unroll
        for (int j = 0; j < kKeptMax; ++j) {
            if (j < inputs.W - 1) {
                const std::int32_t token = end - (inputs.W - 1) + j;
                numbers[j] = inputs.at(x, columns.first.stride, token, c);
            }
        }
        X* const to = at_place<X>(args.inputs, args.place_bytes, place) + c;
#pragma unroll
        for (int j = 0; j < kKeptMax; ++j)
            if (j < inputs.W - 1) store_float(to + j * inputs.num_channels, numbers[j]);
    };
    if (row.saved_end > row.begin) keep(row.saved_end, row.saved);
    keep(row.end, row.place);
}

template <class X, class Y, int kParts>
void recur(const GatedDeltaArgs& args) {
    launch<recur_kernel<X, Y, kParts>>(
        {.grid = dim3(
             narrow<unsigned>(args.num_rows),
             narrow<unsigned>(args.num_value_heads),
             narrow<unsigned>(ceil_div(args.value_dim(), Chunk<kParts>::kColumns))
         ),
         .block = dim3(kThreads),
         .stream = args.stream},
        args,
        1.f / std::sqrt(static_cast<float>(args.key_dim()))
    );
}

template <class X, class Y>
void run(const GatedDeltaArgs& args) {
    static_assert(Chunk<8>::kKeysMax == GatedDeltaArgs::kHeadDimMax);
    args.key_dim() <= Chunk<4>::kKeysMax ? recur<X, Y, 4>(args) : recur<X, Y, 8>(args);
    launch<norm_kernel<X, Y>>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.y.rows * args.num_value_heads, kWarps))),
         .block = dim3(kThreads),
         .stream = args.stream},
        args
    );
    launch<keep_inputs_kernel<X>>(
        {.grid = dim3(
             narrow<unsigned>(ceil_div(args.num_channels(), kThreads)),
             narrow<unsigned>(args.num_rows)
         ),
         .block = dim3(kThreads),
         .stream = args.stream},
        args
    );
}

}  // namespace

void gated_delta_cuda(const GatedDeltaArgs& args) {
    check(args);
    // Not served: storing a state within a row's tokens needs more registers than a thread has.
    CHECK(args.stored_ends == nullptr);
    const bool out_bf16 = args.y.dtype == DType::kBF16;
    if (args.q.first.dtype == DType::kBF16) {
        out_bf16 ? run<bf16, bf16>(args) : run<bf16, float>(args);
    } else {
        out_bf16 ? run<float, bf16>(args) : run<float, float>(args);
    }
}

}  // namespace pitstop::kernels
