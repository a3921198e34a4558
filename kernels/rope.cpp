#include "kernels/rope.h"

#include "kernels/reference.h"

#include <cmath>
#include <limits>
#include <vector>

namespace pitstop::kernels {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Norms and rotates one head of D elements. REQUIRES: head has D elements.
void rotate_head(
    const RopeArgs& args, const bf16* norm, std::int64_t position, std::vector<double>& head
) {
    const auto D = static_cast<std::int64_t>(head.size());
    if (norm != nullptr) {
        double sum_sq = 0.0;
        for (const double v : head) sum_sq += v * v;
        double scale = 1.0 / std::sqrt(sum_sq / static_cast<double>(D) + double{args.norm_eps});
        if (!(sum_sq <= double{std::numeric_limits<float>::max()})) scale = kNan;
        for (std::int64_t i = 0; i < D; ++i)
            head[static_cast<std::size_t>(i)] *=
                scale * (double{args.norm_offset} + double{to_float(norm[i])});
    }
    const std::int64_t half = args.cos.cols;
    for (std::int64_t i = 0; i < half; ++i) {
        const double cos = args.cos.data[position * args.cos.stride + i];
        const double sin = args.sin.data[position * args.sin.stride + i];
        double& a = head[static_cast<std::size_t>(i)];
        double& b = head[static_cast<std::size_t>(i + half)];
        const double rotated = a * cos - b * sin;
        b = b * cos + a * sin;
        a = rotated;
    }
}

}  // namespace

void check(const RopeArgs& args) {
    const KvCache& kv = args.kv;
    CHECK(is_valid(args.q) && is_valid(args.k) && is_valid(args.v) && is_valid(args.q_out));
    CHECK(kv.data != nullptr && kv.page_size >= 1 && kv.num_kv_heads >= 1 && kv.head_dim >= 2);
    CHECK(kv.head_dim % 2 == 0 && kv.dtype != DType::kF16);
    CHECK(args.k.cols == std::int64_t{kv.num_kv_heads} * kv.head_dim && args.v.cols == args.k.cols);
    const std::int64_t q_head_stride = q_head_stride_of(args);
    CHECK(args.q_out.cols % kv.head_dim == 0 && q_head_stride >= kv.head_dim);
    const std::int64_t num_q_heads = args.q_out.cols / kv.head_dim;
    CHECK(args.q.cols == (num_q_heads - 1) * q_head_stride + kv.head_dim);
    CHECK(args.norm_offset == 0.f || args.norm_offset == 1.f);
    CHECK(
        args.k.rows == args.q.rows && args.v.rows == args.q.rows && args.q_out.rows == args.q.rows
    );
    CHECK(args.k.dtype == args.q.dtype && args.v.dtype == args.q.dtype);
    CHECK(args.cos.cols == args.sin.cols && args.cos.rows == args.sin.rows);
    CHECK(args.cos.cols * 2 <= kv.head_dim);
    CHECK(args.slots != nullptr && args.positions != nullptr);
}

void rope_ref(const RopeArgs& args) {
    check(args);
    const KvCache& kv = args.kv;
    const std::int64_t D = kv.head_dim;
    std::vector<double> head(static_cast<std::size_t>(D));
    for (std::int64_t t = 0; t < args.q.rows; ++t) {
        const std::int64_t position = args.positions[t];
        for (std::int64_t h = 0; h < args.q_out.cols / D; ++h) {
            for (std::int64_t i = 0; i < D; ++i)
                head[static_cast<std::size_t>(i)] = at(args.q, t, h * q_head_stride_of(args) + i);
            rotate_head(args, args.q_norm, position, head);
            for (std::int64_t i = 0; i < D; ++i)
                put(args.q_out, t, h * D + i, head[static_cast<std::size_t>(i)]);
        }
        const auto page = static_cast<PageId>(args.slots[t] / kv.page_size);
        const std::int64_t offset_in_page = args.slots[t] % kv.page_size;
        for (std::int32_t h = 0; h < kv.num_kv_heads; ++h) {
            for (std::int64_t i = 0; i < D; ++i)
                head[static_cast<std::size_t>(i)] = at(args.k, t, h * D + i);
            rotate_head(args, args.k_norm, position, head);
            const std::int64_t key = key_offset(kv, page, h) + offset_in_page * D;
            for (std::int64_t i = 0; i < D; ++i) {
                put(kv.data, kv.dtype, key + i, head[static_cast<std::size_t>(i)]);
                if (!std::isfinite(element(kv.data, kv.dtype, key + i)))
                    put(kv.data, kv.dtype, key + i, kNan);
                put(kv.data, kv.dtype, key + value_offset(kv) + i, at(args.v, t, h * D + i));
            }
        }
    }
}

}  // namespace pitstop::kernels
