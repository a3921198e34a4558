#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

constexpr std::int64_t kChunk = 16;  // tokens whose inputs are prepared before the state is read
constexpr std::int64_t kHeadMax = GatedDeltaArgs::kHeadDimMax;
constexpr std::int64_t kKernelMax = GatedDeltaArgs::kKernelMax;

PITSTOP_INLINE float number(float x) { return x; }
PITSTOP_INLINE float number(bf16 x) { return to_float(x); }

// Returns 0 for a number, NaN for an infinity or a NaN.
PITSTOP_INLINE float nan_or_zero(float x) { return x - x; }
PITSTOP_INLINE float sigmoid(float x) { return 1.f / (1.f + __builtin_expf(-x)) + nan_or_zero(x); }
PITSTOP_INLINE float softplus(float x) {
    return (x > 20.f ? x : __builtin_log1pf(__builtin_expf(x))) + nan_or_zero(x);
}
PITSTOP_INLINE F32x16 silu(F32x16 x) { return x / (set1(1.f) + exp(zero() - x)); }

PITSTOP_INLINE float sum_of_squares(const float* x, std::int64_t n) {
    F32x16 acc = zero();
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const F32x16 v = load_up_to(x + i, n - i);
        acc = fma(v, v, acc);
    }
    return sum(acc);
}

// Returns 1 / sqrt(x + eps), NaN if x is infinite or NaN.
PITSTOP_INLINE float inverse_root(float x, float eps) {
    return x <= __FLT_MAX__ ? 1.f / __builtin_sqrtf(x + eps) : __builtin_nanf("");
}

PITSTOP_INLINE void normalize(float* x, std::int64_t n, float factor) {
    const float root = inverse_root(sum_of_squares(x, n), GatedDeltaArgs::kNormEps);
    const F32x16 scale = set1(root * factor);
    for (std::int64_t i = 0; i < n; i += kLanes)
        store_up_to(x + i, load_up_to(x + i, n - i) * scale, n - i);
}

PITSTOP_INLINE void copy(const float* from, float* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes)
        store_up_to(to + i, load_up_to(from + i, n - i), n - i);
}

// A head's channels of the convolution.
struct Channels {
    const HeadColumns* x = nullptr;
    std::int64_t head = 0;
    std::int64_t first = 0;  // its first channel
    float weights[kKernelMax][kHeadMax];

    // Turns the weights [channels, W] into fp32 [W, channels].
    PITSTOP_INLINE void take_weights(const View2<const bf16>& conv) {
        const bf16* const w = conv.data + first * conv.cols;
        for (std::int64_t i = 0; i < x->first.cols; ++i) {
            for (std::int64_t j = 0; j < conv.cols; ++j)
                weights[j][i] = to_float(w[i * conv.cols + j]);
        }
    }
};

// A chunk's inputs of the recurrence for one value head, and its outputs.
struct Chunk {
    float q[kChunk][kHeadMax];
    float k[kChunk][kHeadMax];
    float v[kChunk][kHeadMax];
    float out[kChunk][kHeadMax];  // q S
    float decay[kChunk];
    float beta[kChunk];
    std::int64_t num = 0;  // tokens
};

// One value head of one row.
template <class X>
class Head {
  public:
    PITSTOP_INLINE Head(const GatedDeltaArgs& args, std::int64_t row, std::int64_t head)
        : args_(args),
          head_(head),
          begin_(args.q_starts[row]),
          end_(args.q_starts[row + 1]),
          is_new_(begin_ < end_ && args.positions[begin_] == 0) {
        const std::int64_t dk = args.key_dim();
        const std::int64_t dv = args.value_dim();
        const std::int64_t key_head = head / (args.num_value_heads / args.num_key_heads);
        const std::int64_t num_keys = args.num_key_heads * dk;
        state_ = args.state_at(args.places[row]) + head * dk * dv;
        before_ = args.state_at(args.from_places[row]) + head * dk * dv;
        saved_ = args.state_at(args.saved_places[row]) + head * dk * dv;
        saved_end_ = args.saved_ends[row];
        stored_end_ = args.stored_end(row);
        inputs_ = reinterpret_cast<const X*>(args.inputs_at(args.from_places[row]));
        set(q_, args.q, key_head, key_head * dk);
        set(k_, args.k, key_head, num_keys + key_head * dk);
        set(v_, args.v, head, 2 * num_keys + head * dv);
    }

    void run() {
        if (begin_ == end_) return;
        const std::int64_t num = args_.key_dim() * args_.value_dim();
        if (is_new_) {
            for (std::int64_t i = 0; i < num; i += kLanes) store_up_to(state_ + i, zero(), num - i);
        } else if (before_ != state_) {
            copy(before_, state_, num);
        }
        Chunk chunk;
        run_tokens(begin_, stored_end_, &chunk);
        if (stored_end_ < end_) run_guesses(&chunk);
    }

  private:
    PITSTOP_INLINE void run_tokens(std::int64_t from, std::int64_t to, Chunk* chunk) const {
        for (std::int64_t begin = from; begin < to;) {
            // A chunk ends where the state is saved.
            std::int64_t end = begin + kChunk < to ? begin + kChunk : to;
            if (begin < saved_end_ && saved_end_ < end) end = saved_end_;
            chunk->num = end - begin;
            for (std::int64_t t = 0; t < chunk->num; ++t) prepare(begin + t, t, chunk);
            recur(chunk);
            for (std::int64_t t = 0; t < chunk->num; ++t) finish(begin + t, chunk->out[t]);
            if (end == saved_end_) copy(state_, saved_, args_.key_dim() * args_.value_dim());
            begin = end;
        }
    }

    // Guesses continue a copy of the stored state, and the copy is dropped. Few rows have guesses,
    // so the copy is not in the frame of run().
    [[gnu::noinline]] void run_guesses(Chunk* chunk) {
        alignas(64) float copied[kHeadMax * kHeadMax];
        float* const stored = state_;
        copy(stored, copied, args_.key_dim() * args_.value_dim());
        state_ = copied;
        run_tokens(stored_end_, end_, chunk);
        state_ = stored;
    }

    PITSTOP_INLINE void set(
        Channels& channels, const HeadColumns& x, std::int64_t head, std::int64_t first
    ) {
        channels.x = &x;
        channels.head = head;
        channels.first = first;
        channels.take_weights(args_.conv);
    }

    PITSTOP_INLINE const X* at(const HeadColumns& x, std::int64_t head, std::int64_t t) const {
        return static_cast<const X*>(x.first.data) + t * x.first.stride + x.begin_of(head);
    }

    PITSTOP_INLINE void convolve(const Channels& channels, std::int64_t t, float* to) const {
        const std::int64_t W = args_.conv.cols;
        const std::int64_t num = channels.x->first.cols;
        const X zeros[kHeadMax] = {};
        const X* from[kKernelMax];
        for (std::int64_t j = 0; j < W; ++j) {
            const std::int64_t token = t - (W - 1) + j;
            const std::int64_t kept_row = W - 1 + token - begin_;
            from[j] = token >= begin_ ? at(*channels.x, channels.head, token)
                      : is_new_       ? zeros
                                      : inputs_ + kept_row * args_.num_channels() + channels.first;
        }
        for (std::int64_t i = 0; i < num; i += kLanes) {
            F32x16 acc = zero();
            for (std::int64_t j = 0; j < W; ++j) {
                const F32x16 w = load_up_to(channels.weights[j] + i, num - i);
                acc = fma(w, load_up_to(from[j] + i, num - i), acc);
            }
            store_up_to(to + i, silu(acc), num - i);
        }
    }

    PITSTOP_INLINE void prepare(std::int64_t t, std::int64_t index, Chunk* chunk) const {
        const std::int64_t dk = args_.key_dim();
        convolve(q_, t, chunk->q[index]);
        convolve(k_, t, chunk->k[index]);
        convolve(v_, t, chunk->v[index]);
        normalize(chunk->q[index], dk, 1.f / __builtin_sqrtf(static_cast<float>(dk)));
        normalize(chunk->k[index], dk, 1.f);
        const float a = number(*at(args_.a, head_, t)) + to_float(args_.dt_bias[head_]);
        const float rate = __builtin_expf(args_.a_log[head_]);
        chunk->decay[index] = __builtin_expf(-rate * softplus(a));
        chunk->beta[index] = sigmoid(number(*at(args_.b, head_, t)));
    }

    // The state is read and written in columns that stay in the first cache for the whole chunk.
    PITSTOP_INLINE void recur(Chunk* chunk) const {
        const std::int64_t dv = args_.value_dim();
        std::int64_t c = 0;
        for (; c + 2 * kLanes <= dv; c += 2 * kLanes) recur_columns<2>(chunk, c, kLanes);
        for (; c < dv; c += kLanes) recur_columns<1>(chunk, c, dv - c);
    }

    // Columns [c, c + kVectors * kLanes), where the last vector has `n` lanes.
    template <int kVectors>
    PITSTOP_INLINE void recur_columns(Chunk* chunk, std::int64_t c, std::int64_t n) const {
        const std::int64_t dk = args_.key_dim();
        const std::int64_t dv = args_.value_dim();
        F32x16 known[kVectors];  // k S
        for (int v = 0; v < kVectors; ++v) known[v] = zero();
        for (std::int64_t i = 0; i < dk; ++i) {
            for (int v = 0; v < kVectors; ++v) {
                const F32x16 s = load_up_to(state_ + i * dv + c + v * kLanes, n);
                known[v] = fma(set1(chunk->k[0][i]), s, known[v]);
            }
        }
        for (std::int64_t t = 0; t < chunk->num; ++t) {
            if (t + 1 < chunk->num) {
                step<kVectors, true>(chunk, t, c, n, known);
            } else {
                step<kVectors, false>(chunk, t, c, n, known);
            }
        }
    }

    // `known` is k S for token t, before its decay. On return, k S for the next token.
    template <int kVectors, bool kHasNext>
    PITSTOP_INLINE void step(
        Chunk* chunk, std::int64_t t, std::int64_t c, std::int64_t n, F32x16* known
    ) const {
        const std::int64_t dk = args_.key_dim();
        const std::int64_t dv = args_.value_dim();
        const F32x16 decay = set1(chunk->decay[t]);
        const F32x16 beta = set1(chunk->beta[t]);
        F32x16 delta[kVectors];
        F32x16 out[kVectors];
        F32x16 next[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            delta[v] = beta * (load_up_to(chunk->v[t] + c + v * kLanes, n) - decay * known[v]);
            out[v] = next[v] = zero();
        }
        for (std::int64_t i = 0; i < dk; ++i) {
            const F32x16 k = set1(chunk->k[t][i]);
            const F32x16 q = set1(chunk->q[t][i]);
            const F32x16 k_next = kHasNext ? set1(chunk->k[t + 1][i]) : zero();
            for (int v = 0; v < kVectors; ++v) {
                float* const at = state_ + i * dv + c + v * kLanes;
                const F32x16 s = fma(k, delta[v], decay * load_up_to(at, n));
                store_up_to(at, s, n);
                out[v] = fma(q, s, out[v]);
                if (kHasNext) next[v] = fma(k_next, s, next[v]);
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            store_up_to(chunk->out[t] + c + v * kLanes, out[v], n);
            known[v] = next[v];
        }
    }

    PITSTOP_INLINE void finish(std::int64_t t, const float* out) const {
        if (args_.y.dtype == DType::kF32) {
            finish_as(t, out, static_cast<float*>(args_.y.data));
        } else {
            finish_as(t, out, static_cast<bf16*>(args_.y.data));
        }
    }
    template <class Y>
    PITSTOP_INLINE void finish_as(std::int64_t t, const float* out, Y* y) const {
        const std::int64_t dv = args_.value_dim();
        const float mean = sum_of_squares(out, dv) / static_cast<float>(dv);
        const F32x16 scale = set1(inverse_root(mean, args_.norm_eps));
        const X* const z = at(args_.z, head_, t);
        Y* const to = y + t * args_.y.stride + head_ * dv;
        for (std::int64_t i = 0; i < dv; i += kLanes) {
            const std::int64_t n = dv - i;
            const F32x16 normed = load_up_to(out + i, n) * scale * load_up_to(args_.norm_w + i, n);
            store_up_to(to + i, normed * silu(load_up_to(z + i, n)), n);
        }
    }

    const GatedDeltaArgs& args_;
    std::int64_t head_;
    std::int64_t begin_;
    std::int64_t end_;
    bool is_new_;
    float* state_ = nullptr;  // [dk, dv]
    const float* before_ = nullptr;
    float* saved_ = nullptr;
    std::int64_t saved_end_ = 0;
    std::int64_t stored_end_ = 0;
    const X* inputs_ = nullptr;  // the kept inputs that precede the first token
    Channels q_;
    Channels k_;
    Channels v_;
};

}  // namespace

void gated_delta(const GatedDeltaArgs& args) {
    check(args);
    const bool is_f32 = args.q.first.dtype == DType::kF32;
    auto heads = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = i / args.num_value_heads;
            const std::int64_t head = i % args.num_value_heads;
            if (is_f32) {
                Head<float>(args, row, head).run();
            } else {
                Head<bf16>(args, row, head).run();
            }
        }
    };
    const std::int64_t num_heads = args.num_rows * args.num_value_heads;
    const std::int64_t state_bytes = args.key_dim() * args.value_dim() * 4;
    for_ranges(args.stream, num_heads, grain_of_bytes(state_bytes), heads);
    // All heads of a row read its kept inputs, so these are replaced after all heads have finished.
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) keep_conv_inputs(args, r);
    };
    for_ranges(args.stream, args.num_rows, 8, rows);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
