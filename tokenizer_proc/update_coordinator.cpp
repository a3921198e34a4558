#include "tokenizer_proc/update_coordinator.h"

namespace pitstop::tokenizer {

std::optional<Error> UpdateCoordinator::refusal(TimePoint now, const messages::UpdateSpec& spec)
    const {
    if (is_busy()) return busy(now);
    return problem_of(spec);
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out
) {
    caller.adapter = call.update.adapter;
    std::optional<Error> error = refusal(now, call.update);
    if (!error && may_collect(call)) error = weights().problem_of_late_part(call.update.label);
    if (error) return driver_.refuse(std::move(caller), *std::move(error), out);
    driver_.begin(now, {std::move(caller), call.timeout_ms, call.update}, out);
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::StageWeights& call, Out& out
) {
    caller.adapter = call.update.adapter;
    if (auto error = refusal(now, call.update))
        return driver_.refuse(std::move(caller), *std::move(error), out);
    driver_.begin(
        now,
        {std::move(caller), call.timeout_ms, call.update, messages::UpdatePhase::kPrepared},
        out
    );
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::RollbackWeights& call, Out& out
) {
    caller.adapter = call.adapter;
    std::optional<Error> error;
    if (is_busy()) {
        error = busy(now);
    } else if (call.adapter.empty()) {  // each replica knows the versions of its adapters
        error = weights().problem_of_rollback();
    }
    if (error) return driver_.refuse(std::move(caller), *std::move(error), out);
    messages::UpdateSpec spec;
    spec.kv_policy = call.kv_policy;
    spec.adapter = call.adapter;
    spec.adapter_policy = call.adapter_policy;
    driver_.begin(
        now,
        {std::move(caller),
         call.timeout_ms,
         std::move(spec),
         messages::UpdatePhase::kCommitted,
         /*is_rollback=*/true},
        out
    );
}

}  // namespace pitstop::tokenizer
