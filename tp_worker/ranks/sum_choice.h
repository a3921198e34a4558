// Chooses how to sum over the ranks' GPUs, by size: with our own kernels (kernels/exchange.h),
// which have low latency, or with NCCL (rank_nccl.h), which uses the links better for large sums.
//
// The ranks measure both when they start. Every rank knows all ranks' times, so all ranks make
// the same choice. In deterministic mode there is no choice: the order of NCCL's sums depends
// on their size.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

enum class SumPath : std::uint8_t {
    kAuto,  // the size decides
    kOwn,   // NCCL is not opened
    kNccl,  // for any size, in steps that are not graphs
};
// Accepts auto, own and nccl.
[[nodiscard]] Result<SumPath> parse_sum_path(std::string_view name);

// The time of a sum of this many bytes, on the slowest rank.
struct SumTime {
    std::int64_t bytes = 0;
    double own_ms = 0.0;
    double nccl_ms = 0.0;
};

inline constexpr std::int64_t kNeverBytes = std::numeric_limits<std::int64_t>::max();

// Returns the sizes to measure: the least at which NCCL might be faster, doubled again and again,
// and finally `bytes_max`; none if `bytes_max` is less.
[[nodiscard]] std::vector<std::int64_t> sizes_to_measure(std::int64_t bytes_max);

// Returns the size from which NCCL was faster in every measurement; kNeverBytes if it was not
// faster at the largest size. REQUIRES: sizes ascend.
[[nodiscard]] std::int64_t nccl_bytes_min(std::span<const SumTime> times);

// As nccl_bytes_min(), without measurements: vLLM's sizes, measured on Hopper with NVLink.
// Source: vLLM, vllm/distributed/device_communicators/all_reduce_utils.py,
// CUSTOM_ALL_REDUCE_MAX_SIZES.
[[nodiscard]] std::int64_t nccl_bytes_min_guess(int num_ranks);

}  // namespace pitstop::tp_worker
