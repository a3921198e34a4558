#include "kernels/gated_delta.h"

#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace pitstop::kernels {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double finite_or_nan(double x) { return std::isfinite(x) ? x : kNan; }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(finite_or_nan(x)); }
double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

// Returns 1 / sqrt(sum + eps), and NaN if fp32 cannot represent the sum.
double inverse_root(double sum, double eps) {
    return sum <= double{std::numeric_limits<float>::max()} ? 1.0 / std::sqrt(sum + eps) : kNan;
}

void normalize(std::vector<double>& x, double factor) {
    double sum = 0.0;
    for (const double v : x) sum += v * v;
    const double scale = inverse_root(sum, double{GatedDeltaArgs::kNormEps}) * factor;
    for (double& v : x) v *= scale;
}

// One value head of one row.
class Head {
  public:
    Head(const GatedDeltaArgs& args, std::int64_t row, std::int64_t head)
        : args_(args),
          head_(head),
          key_head_(head / (args.num_value_heads / args.num_key_heads)),
          begin_(args.q_starts[row]),
          end_(args.q_starts[row + 1]),
          row_(row),
          is_new_(begin_ < end_ && args.positions[begin_] == 0) {}

    void run() {
        const std::int64_t dk = args_.key_dim();
        const std::int64_t dv = args_.value_dim();
        const float* const before = args_.state_at(args_.from_places[row_]) + head_ * dk * dv;
        state_.assign(static_cast<std::size_t>(dk * dv), 0.0);
        for (std::size_t i = 0; !is_new_ && i < state_.size(); ++i) state_[i] = double{before[i]};
        const auto leave = [&](std::int32_t place) {
            float* const kept = args_.state_at(place) + head_ * dk * dv;
            for (std::size_t i = 0; i < state_.size(); ++i) kept[i] = static_cast<float>(state_[i]);
        };
        for (std::int64_t t = begin_; t < end_; ++t) {
            step(t);
            if (t + 1 == args_.saved_ends[row_]) leave(args_.saved_places[row_]);
            if (t + 1 == args_.stored_end(row_)) leave(args_.places[row_]);
        }
    }

  private:
    // The convolution's output for a head of q, k or v, whose first channel is `channel`.
    std::vector<double> convolved(
        const HeadColumns& x, std::int64_t head, std::int64_t channel, std::int64_t t
    ) const {
        const std::int64_t W = args_.conv.cols;
        std::vector<double> out;
        for (std::int64_t i = 0; i < x.first.cols; ++i) {
            double sum = 0.0;
            for (std::int64_t j = 0; j < W; ++j) {
                const std::int64_t from = t - (W - 1) + j;
                double input = 0.0;
                if (from >= begin_) {
                    input = at(x.first, from, x.begin_of(head) + i);
                } else if (!is_new_) {
                    const std::int64_t row = W - 1 + from - begin_;
                    input = element(
                        args_.inputs_at(args_.from_places[row_]),
                        x.first.dtype,
                        row * args_.num_channels() + channel + i
                    );
                }
                const bf16 w = args_.conv.data[(channel + i) * args_.conv.stride + j];
                sum += double{to_float(w)} * input;
            }
            out.push_back(silu(sum));
        }
        return out;
    }

    void step(std::int64_t t) {
        const std::int64_t dk = args_.key_dim();
        const std::int64_t dv = args_.value_dim();
        const std::int64_t k_begin = args_.num_key_heads * dk;
        std::vector<double> q = convolved(args_.q, key_head_, key_head_ * dk, t);
        std::vector<double> k = convolved(args_.k, key_head_, k_begin + key_head_ * dk, t);
        const std::vector<double> v = convolved(args_.v, head_, 2 * k_begin + head_ * dv, t);
        normalize(q, 1.0 / std::sqrt(static_cast<double>(dk)));
        normalize(k, 1.0);
        const double beta = sigmoid(finite_or_nan(at(args_.b.first, t, args_.b.begin_of(head_))));
        const double a = at(args_.a.first, t, args_.a.begin_of(head_));
        const double time = softplus(finite_or_nan(a + double{to_float(args_.dt_bias[head_])}));
        const double decay = std::exp(-std::exp(double{args_.a_log[head_]}) * time);
        std::vector<double> out(static_cast<std::size_t>(dv));
        double sum_sq = 0.0;
        for (std::size_t c = 0; c < out.size(); ++c) {
            const auto S = [&](std::size_t i) -> double& { return state_[i * out.size() + c]; };
            double known = 0.0;
            for (std::size_t i = 0; i < k.size(); ++i) known += k[i] * (S(i) *= decay);
            for (std::size_t i = 0; i < k.size(); ++i) S(i) += k[i] * beta * (v[c] - known);
            for (std::size_t i = 0; i < k.size(); ++i) out[c] += q[i] * S(i);
            sum_sq += out[c] * out[c];
        }
        const double scale = inverse_root(sum_sq / static_cast<double>(dv), double{args_.norm_eps});
        for (std::int64_t c = 0; c < dv; ++c) {
            const double z = at(args_.z.first, t, args_.z.begin_of(head_) + c);
            const double normed = out[static_cast<std::size_t>(c)] * scale;
            put(args_.y, t, head_ * dv + c, normed * double{to_float(args_.norm_w[c])} * silu(z));
        }
    }

    const GatedDeltaArgs& args_;
    std::int64_t head_;
    std::int64_t key_head_;
    std::int64_t begin_;
    std::int64_t end_;
    std::int64_t row_;
    bool is_new_;
    std::vector<double> state_{};  // [dk, dv]
};

void check_columns(const HeadColumns& columns, const GatedDeltaArgs& args, std::int64_t num_heads) {
    CHECK(is_valid(columns.first) && columns.first.rows == args.y.rows);
    CHECK(columns.first.dtype == args.q.first.dtype && columns.group_len >= 1);
    CHECK(num_heads % columns.group_len == 0);
    CHECK(columns.begin_of(num_heads - 1) + columns.first.cols <= columns.first.stride);
}

}  // namespace

void check(const GatedDeltaArgs& args) {
    CHECK(args.num_key_heads >= 1 && args.num_value_heads % args.num_key_heads == 0);
    CHECK(is_valid(args.y) && args.y.cols == args.num_value_heads * args.value_dim());
    check_columns(args.q, args, args.num_key_heads);
    check_columns(args.k, args, args.num_key_heads);
    for (const HeadColumns* columns : {&args.v, &args.z, &args.b, &args.a})
        check_columns(*columns, args, args.num_value_heads);
    CHECK(args.k.first.cols == args.key_dim() && args.z.first.cols == args.value_dim());
    CHECK(args.b.first.cols == 1 && args.a.first.cols == 1);
    CHECK(args.key_dim() <= args.kHeadDimMax && args.value_dim() <= args.kHeadDimMax);
    CHECK(args.conv.rows == args.num_channels() && args.conv.data != nullptr);
    CHECK(args.conv.cols >= 2 && args.conv.cols <= args.kKernelMax);
    CHECK(args.conv.stride == args.conv.cols);
    CHECK(args.a_log != nullptr && args.dt_bias != nullptr && args.norm_w != nullptr);
    CHECK(args.states != nullptr && args.inputs != nullptr && args.place_bytes > 0);
    CHECK(args.q_starts != nullptr && args.positions != nullptr && args.places != nullptr);
    CHECK(args.from_places != nullptr && args.saved_places != nullptr);
    CHECK(args.saved_ends != nullptr);
}

namespace {

// Stores the convolution's inputs before token `end` of the row in `to`. `to` may be `before`, the
// inputs before the row's first token.
void leave_inputs(
    const GatedDeltaArgs& args,
    std::int64_t row,
    std::int64_t end,
    const std::byte* before,
    std::byte* to
) {
    const std::int64_t W = args.conv.cols;
    const std::int64_t begin = args.q_starts[row];
    const bool is_new = args.positions[begin] == 0;
    const std::int64_t size = size_of(args.q.first.dtype);
    const std::int64_t row_bytes = args.num_channels() * size;
    for (std::int64_t j = 0; j < W - 1; ++j, to += row_bytes) {
        const std::int64_t from = end - (W - 1) + j;
        if (from < begin) {
            const std::byte* const kept = before + (W - 1 + from - begin) * row_bytes;
            is_new ? std::fill_n(to, row_bytes, std::byte{0}) : std::copy_n(kept, row_bytes, to);
            continue;
        }
        std::byte* channel = to;
        const auto take = [&](const HeadColumns& x, std::int64_t num_heads) {
            const auto* const data = static_cast<const std::byte*>(x.first.data);
            const std::int64_t head_bytes = x.first.cols * size;
            for (std::int64_t h = 0; h < num_heads; ++h) {
                const std::int64_t at = from * x.first.stride + x.begin_of(h);
                channel = std::copy_n(data + at * size, head_bytes, channel);
            }
        };
        take(args.q, args.num_key_heads);
        take(args.k, args.num_key_heads);
        take(args.v, args.num_value_heads);
    }
}

}  // namespace

void keep_conv_inputs(const GatedDeltaArgs& args, std::int64_t row) {
    const std::int64_t begin = args.q_starts[row];
    if (begin == args.q_starts[row + 1]) return;
    const std::byte* const before = args.inputs_at(args.from_places[row]);
    const std::int64_t saved_end = args.saved_ends[row];
    if (saved_end > begin)
        leave_inputs(args, row, saved_end, before, args.inputs_at(args.saved_places[row]));
    leave_inputs(args, row, args.stored_end(row), before, args.inputs_at(args.places[row]));
}

void gated_delta_ref(const GatedDeltaArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.num_rows; ++r) {
        for (std::int64_t h = 0; h < args.num_value_heads; ++h) Head(args, r, h).run();
        keep_conv_inputs(args, r);
    }
}

}  // namespace pitstop::kernels
