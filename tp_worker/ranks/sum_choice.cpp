#include "tp_worker/ranks/sum_choice.h"

#include "kernels/exchange.h"

namespace pitstop::tp_worker {

Result<SumPath> parse_sum_path(std::string_view name) {
    if (name == "auto") return SumPath::kAuto;
    if (name == "own") return SumPath::kOwn;
    if (name == "nccl") return SumPath::kNccl;
    return make_error(
        ErrorCode::kInvalidArgument, "--all-reduce takes auto, own or nccl, not '{}'", name
    );
}

std::vector<std::int64_t> sizes_to_measure(std::int64_t bytes_max) {
    std::vector<std::int64_t> sizes;
    if (bytes_max < kernels::kOneShotBytesMax) return sizes;
    for (std::int64_t bytes = kernels::kOneShotBytesMax; bytes < bytes_max; bytes *= 2)
        sizes.push_back(bytes);
    sizes.push_back(bytes_max);
    return sizes;
}

std::int64_t nccl_bytes_min(std::span<const SumTime> times) {
    std::int64_t least = kNeverBytes;
    for (std::size_t i = times.size(); i > 0; --i) {
        const SumTime& time = times[i - 1];
        if (time.nccl_ms >= time.own_ms) break;
        least = time.bytes;
    }
    return least;
}

std::int64_t nccl_bytes_min_guess(int num_ranks) {
    constexpr std::int64_t kMiB = std::int64_t{1} << 20;
    if (num_ranks <= 2) return 64 * kMiB;
    if (num_ranks <= 4) return 32 * kMiB;
    if (num_ranks <= 6) return kMiB / 2;
    return kMiB / 4;
}

}  // namespace pitstop::tp_worker
