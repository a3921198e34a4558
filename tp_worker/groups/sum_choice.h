// Chooses which way a sum over the ranks' GPUs takes, by its size: kernels of our own
// (kernels/exchange.h), which are soon there, or NCCL (rank_nccl.h), which has more of the links
// where there is much to carry.
//
// The ranks measure both at their start, on the machine as it is; every rank has all ranks' times
// and so chooses alike. In deterministic mode there is nothing to choose: the order of NCCL's sums
// depends on their size.
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
    kNccl,  // whatever the size is, where a step is not a graph
};
// Accepts auto, own and nccl.
[[nodiscard]] Result<SumPath> parse_sum_path(std::string_view name);

// Says how long a sum of so many bytes takes, on the rank where it takes longest.
struct SumTime {
    std::int64_t bytes = 0;
    double own_ms = 0.0;
    double nccl_ms = 0.0;
};

inline constexpr std::int64_t kNeverBytes = std::numeric_limits<std::int64_t>::max();

// Returns the sizes to measure: from where NCCL might be ahead, doubling, up to and with
// `bytes_max`; none where that is less.
[[nodiscard]] std::vector<std::int64_t> sizes_to_measure(std::int64_t bytes_max);

// Returns the size from which on every measurement has NCCL ahead; kNeverBytes where the largest
// has not. REQUIRES: sizes ascend.
[[nodiscard]] std::int64_t nccl_bytes_min(std::span<const SumTime> times);

// Returns the same where nothing is measured: what others found on Hopper with NVLink.
// Source: vLLM, vllm/distributed/device_communicators/all_reduce_utils.py,
// CUSTOM_ALL_REDUCE_MAX_SIZES.
[[nodiscard]] std::int64_t nccl_bytes_min_guess(int num_ranks);

}  // namespace pitstop::tp_worker
