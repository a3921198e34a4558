// Counts the steps that the patterns of one configuration take, over all modules of a model, and
// ends them when nobody waits for the result any more.
//
// Thread: one at a time; another may set the flag.
#pragma once

#include "base/result.h"

#include <atomic>
#include <cstdint>

namespace pitstop::tp_worker {

class MatchSteps {
  public:
    // About ten seconds. 1,000 patterns of names take a quarter of it for 1,000 modules.
    static constexpr std::int64_t kMax = std::int64_t{1} << 28;

    // `is_dropped` may be null, and outlives the count.
    explicit MatchSteps(const std::atomic<bool>* is_dropped = nullptr, std::int64_t max = kMax)
        : is_dropped_(is_dropped), left_(max) {}

    // Called before the steps are made. Errors: kResourceExhausted, if they are too many;
    // kAborted, if the work was dropped.
    Result<> take(std::int64_t num) {
        if (is_dropped_ != nullptr && is_dropped_->load(std::memory_order_relaxed))
            return Error{
                ErrorCode::kAborted, "the stage was dropped while its modules were searched"};
        left_ -= num;
        if (left_ >= 0) return Ok{};
        return Error{
            ErrorCode::kResourceExhausted,
            "the patterns and names of adapter_config.json (target_modules, exclude_modules, "
            "layers_pattern, target_parameters, rank_pattern, alpha_pattern) take too many steps "
            "on the modules of this model; give fewer or simpler ones"};
    }

  private:
    const std::atomic<bool>* is_dropped_;
    std::int64_t left_;
};

}  // namespace pitstop::tp_worker
