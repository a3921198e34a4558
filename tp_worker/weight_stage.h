// Fills one copy of a rank's weights from what an update names, checks it and digests what is
// resident: the rank's vote (design section 5).
//
// A piece at a time: read, slice and convert into its place, digest it and look for non-finite
// values there while it is in the cache, rest (pace.h). Between two pieces a drop is noticed.
//
// Thread: the background's, and while no pass runs others of its own beside it.
#pragma once

#include "kernels/ops.h"
#include "messages/weights.h"
#include "tp_worker/model_config.h"
#include "tp_worker/pace.h"
#include "tp_worker/weight_layout.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <string_view>

namespace pitstop {

struct StageArgs {
    UpdateId update{};
    const UpdateSpec& spec;
    Rank rank{};
    const WeightLayout& layout;
    const ModelConfig& config;
    const Ops& ops;
    std::byte* target = nullptr;      // the copy to fill
    const std::byte* live = nullptr;  // the copy that serves; direct: the same
    const Pace& pace;
    int num_threads = 1;  // when no pass runs; while one does, one
    const std::atomic<bool>& is_dropped;
    std::function<void(std::string_view)> at{};  // named places, for fault tests
};

// Every problem that can be found before the first byte is written is found then, and all of them
// are listed; outcome.phase is "idle" as long as nothing was overwritten.
[[nodiscard]] WorkerStaged stage_weights(const StageArgs& args);

}  // namespace pitstop
