#include "kernels/attention.h"

#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pitstop::kernels {

void check(const AttentionArgs& args) {
    const KvCache& kv = args.kv;
    CHECK(is_valid(args.q) && is_valid(args.out));
    CHECK(kv.data != nullptr && kv.page_size >= 1 && kv.num_kv_heads >= 1 && kv.head_dim >= 2);
    CHECK(kv.head_dim <= AttentionArgs::kHeadDimMax);
    CHECK(kv.dtype == args.q.dtype);
    CHECK(args.num_q_heads >= 1 && args.num_q_heads % kv.num_kv_heads == 0);
    CHECK(
        args.q.cols == std::int64_t{args.num_q_heads} * kv.head_dim && args.out.cols == args.q.cols
    );
    CHECK(args.out.rows == args.q.rows);
    CHECK(args.window >= 1 && args.num_rows >= 0);
    if (args.num_rows == 0) return;
    CHECK(
        args.q_starts != nullptr && args.kv_lens != nullptr && args.pages != nullptr &&
        args.page_starts != nullptr
    );
}

void attention_ref(const AttentionArgs& args) {
    check(args);
    const KvCache& kv = args.kv;
    const std::int64_t D = kv.head_dim;
    const std::int32_t group = args.num_q_heads / kv.num_kv_heads;
    std::vector<double> scores;
    for (std::int32_t r = 0; r < args.num_rows; ++r) {
        for (std::int64_t t = args.q_starts[r]; t < args.q_starts[r + 1]; ++t) {
            const std::int64_t position = args.kv_lens[r] - (args.q_starts[r + 1] - t);
            const std::int64_t first = std::max<std::int64_t>(0, position - args.window + 1);
            for (std::int32_t h = 0; h < args.num_q_heads; ++h) {
                // Returns the number of elements from kv.data to position j's key.
                const auto key_at = [&](std::int64_t j) {
                    const PageId page = args.pages[args.page_starts[r] + j / kv.page_size];
                    return key_offset(kv, page, h / group) + (j % kv.page_size) * D;
                };
                scores.clear();
                for (std::int64_t j = first; j <= position; ++j) {
                    double dot = 0.0;
                    for (std::int64_t i = 0; i < D; ++i) {
                        dot += at(args.q, t, h * D + i) * element(kv.data, kv.dtype, key_at(j) + i);
                    }
                    scores.push_back(dot * double{args.scale});
                }
                const double max = *std::max_element(scores.begin(), scores.end());
                double sum = 0.0;
                for (double& score : scores) sum += score = std::exp(score - max);
                for (std::int64_t i = 0; i < D; ++i) {
                    double out = 0.0;
                    for (std::int64_t j = first; j <= position; ++j) {
                        out += scores[static_cast<std::size_t>(j - first)] *
                               element(kv.data, kv.dtype, key_at(j) + value_offset(kv) + i);
                    }
                    put(args.out, t, h * D + i, out / sum);
                }
            }
        }
    }
}

std::int64_t attention_workspace_bytes(const AttentionShape& shape) {
    const std::int64_t num_segments =
        (std::int64_t{shape.kv_len_max} + AttentionArgs::kSegmentKeys - 1) /
        AttentionArgs::kSegmentKeys;
    const std::int64_t floats =
        16 + (std::int64_t{shape.head_dim} + 31) / 32 * 32;  // floats for one query's part
    return std::min(
        kAttentionWorkspaceMax, shape.num_tokens * shape.num_q_heads * num_segments * floats * 4
    );
}

}  // namespace pitstop::kernels
