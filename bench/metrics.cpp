#include "bench/metrics.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace pitstop::bench {
namespace {

constexpr double kMsPerNs = 1e-6;

// Finds the time in which every request was decoding, and the tokens of that time. REQUIRES: all
// requests succeeded.
std::optional<DecodeWindow> decode_window(
    const DriveResult& result, const std::vector<std::int64_t>& first_ns
) {
    std::int64_t begin = 0;
    std::int64_t end = std::numeric_limits<std::int64_t>::max();
    double prompt_tokens = 0;
    for (std::size_t i = 0; i < result.requests.size(); ++i) {
        if (!result.requests[i].error.empty() || first_ns[i] < 0) return std::nullopt;
        begin = std::max(begin, first_ns[i]);
        end = std::min(end, result.requests[i].end_ns);
        prompt_tokens += static_cast<double>(result.requests[i].prompt_tokens);
    }
    if (begin >= end) return std::nullopt;
    DecodeWindow window{.seconds = static_cast<double>(end - begin) * 1e-9};
    double before = 0;
    for (const ChunkEvent& chunk : result.chunks) {
        if (chunk.at_ns <= begin) before += chunk.tokens;
        if (chunk.at_ns > begin && chunk.at_ns <= end) window.tokens += chunk.tokens;
    }
    const double half_way = prompt_tokens + before + static_cast<double>(window.tokens) / 2;
    window.context_mean = half_way / static_cast<double>(result.requests.size());
    if (window.tokens == 0) return std::nullopt;
    return window;
}

}  // namespace

Metrics metrics_of(const DriveResult& result) {
    const std::size_t count = result.requests.size();
    std::vector<std::int64_t> first_ns(count, -1), last_ns(count, -1), largest_ns(count, 0);
    std::vector<double> gap_ms;
    gap_ms.reserve(result.chunks.size());
    for (const ChunkEvent& chunk : result.chunks) {
        const std::size_t i = chunk.request;
        if (first_ns[i] < 0) {
            first_ns[i] = chunk.at_ns;
        } else if (result.requests[i].error.empty()) {
            const std::int64_t gap = chunk.at_ns - last_ns[i];
            largest_ns[i] = std::max(largest_ns[i], gap);
            const double share = static_cast<double>(gap) / chunk.tokens;
            gap_ms.insert(gap_ms.end(), chunk.tokens, share * kMsPerNs);
        }
        last_ns[i] = chunk.at_ns;
    }

    Metrics metrics;
    std::vector<double> first_token_ms, gap_largest_ms, request_ms;
    for (std::size_t i = 0; i < count; ++i) {
        const RequestRecord& record = result.requests[i];
        metrics.seconds = std::max(metrics.seconds, static_cast<double>(record.end_ns) * 1e-9);
        if (!record.error.empty()) {
            ++metrics.errors[record.error];
            continue;
        }
        ++metrics.num_ok;
        metrics.prompt_tokens += record.prompt_tokens;
        metrics.cached_tokens += record.cached_tokens;
        metrics.output_tokens += record.output_tokens;
        request_ms.push_back(static_cast<double>(record.end_ns - record.due_ns) * kMsPerNs);
        if (first_ns[i] >= 0) {
            first_token_ms.push_back(static_cast<double>(first_ns[i] - record.due_ns) * kMsPerNs);
        }
        if (last_ns[i] > first_ns[i]) {
            gap_largest_ms.push_back(static_cast<double>(largest_ns[i]) * kMsPerNs);
        }
    }
    metrics.first_token_ms = summarize(std::move(first_token_ms));
    metrics.gap_ms = summarize(std::move(gap_ms));
    metrics.gap_largest_ms = summarize(std::move(gap_largest_ms));
    metrics.request_ms = summarize(std::move(request_ms));
    metrics.decode = decode_window(result, first_ns);
    return metrics;
}

}  // namespace pitstop::bench
