#include "tokenizer_proc/serving_weights.h"

namespace pitstop::tokenizer {

void ServingWeights::set_has_weights(ReplicaId replica, bool has_weights) {
    const std::int32_t index = raw(replica);
    if (index >= 0 && index < std::ssize(has_weights_))
        has_weights_[static_cast<std::size_t>(index)] = has_weights;
}

std::optional<Error> ServingWeights::problem_of(const messages::UpdateSpec& spec) const {
    if (!spec.adapter.empty()) return std::nullopt;
    if (spec.epoch && *spec.epoch <= version_.epoch) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "epoch {} is not newer than the one that serves, {}",
            raw(*spec.epoch),
            raw(version_.epoch)
        );
    }
    if (!spec.base_digest.empty() && spec.base_digest != version_.digest) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the update needs the version with digest {}; the one that serves has {}",
            spec.base_digest,
            version_.digest
        );
    }
    if (must_be_complete() && spec.partial) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "the engine is torn or has no weights; send a complete update. A partial one that "
            "declares an epoch, a digest or a manifest is refused until then"
        );
    }
    return std::nullopt;
}

std::optional<Error> ServingWeights::problem_of_rollback() const {
    if (has_retained_ && !is_torn_) return std::nullopt;
    return make_error(
        ErrorCode::kFailedPrecondition,
        "no previous version is retained: nothing was committed since the last stage began; "
        "update to the directory of that version"
    );
}

std::optional<Error> ServingWeights::problem_of_late_part(const std::string& label) const {
    if (!collected_ || collected_->epoch != version_.epoch || label != collected_->label)
        return std::nullopt;
    return make_error(
        ErrorCode::kAborted,
        "the version with label '{}' was published as epoch {} from earlier calls; this call names "
        "the same label, but came too late for that version. Pause or begin and send every tensor "
        "again, or name another label",
        collected_->label,
        raw(collected_->epoch)
    );
}

void ServingWeights::decide_rollback(Epoch epoch, std::string label, std::string digest) {
    decided_ = {
        .epoch = epoch,
        .label = std::move(label),
        .digest = std::move(digest),
        .path = retained_path_};
}

void ServingWeights::commit(Previous previous, std::string called_label) {
    has_retained_ = previous == Previous::kRetained;
    is_torn_ = false;
    has_weights_.assign(has_weights_.size(), true);
    retained_path_ = std::move(version_.path);
    version_ = decided_;
    collected_.reset();
    if (!called_label.empty())
        collected_ = {.epoch = version_.epoch, .label = std::move(called_label)};
}

}  // namespace pitstop::tokenizer
