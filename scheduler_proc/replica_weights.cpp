#include "scheduler_proc/replica_weights.h"

namespace pitstop::scheduler {

void ReplicaWeights::relabel(const std::string& label) {
    if (version_.label == label) return;
    version_.label = label;
    ++version_.serial;
}

void ReplicaWeights::serve(Version next, Old old) {
    next.serial = version_.serial + 1;
    Version before = std::exchange(version_, std::move(next));
    retained_.reset();
    if (old == Old::kRetained && are_whole()) retained_ = std::move(before);
    live_ = Live::kWhole;
}

std::optional<Error> ReplicaWeights::problem_of(Epoch next) const {
    if (next > version_.epoch) return std::nullopt;
    return make_error(
        ErrorCode::kFailedPrecondition,
        "epoch {} is not newer than the one that serves, {}",
        raw(next),
        raw(version_.epoch)
    );
}

}  // namespace pitstop::scheduler
