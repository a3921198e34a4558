// Makes one update from calls without a session (UpdateCoordinator::collect).
//
// Trainers send a model in any number of calls between a pause and its end. No state between those
// calls is meant to serve, and its label or digest would name a mixture that nobody declared. So
// the calls become the buckets of a session that no call opened.
#include "tokenizer_proc/update_coordinator.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::tokenizer {

bool UpdateCoordinator::may_collect(const messages::UpdateWeights& call) {
    const messages::UpdateSpec& spec = call.update;
    return spec.adapter.empty() && spec.partial && spec.mode == messages::UpdateMode::kStaged &&
           !spec.epoch && spec.manifest.empty() && spec.digest.empty() &&
           spec.base_digest.empty() && spec.source.kind != messages::SourceKind::kBuckets;
}

void UpdateCoordinator::collect(
    TimePoint now, Caller caller, const messages::UpdateWeights& call, Brings brings, Out& out
) {
    if (is_collecting()) {
        TreeUpdate& update = driver_.update();
        if (update.calls().is_of_another_version(call.update.label))
            return refuse_mixture(now, std::move(caller), call.update.label, out);
        update.wait_for(now, std::move(caller), call.timeout_ms);
        update.name_by_call(call.update.label);
        update.set_kv_policy(call.update.kv_policy);
        return out.orders.push_back(update.fill(now, call.update.source));
    }
    messages::UpdateSpec spec = call.update;
    spec.partial = !must_be_complete() && brings == Brings::kParts;
    if (auto error = refusal(now, spec))
        return driver_.refuse(std::move(caller), *std::move(error), out);
    spec.source = messages::WeightSource{.kind = messages::SourceKind::kBuckets};
    driver_.begin(
        now,
        {std::move(caller), call.timeout_ms, std::move(spec), messages::UpdatePhase::kOpen},
        out
    );
    driver_.update().open_collection(now, call.update.source);
}

// REQUIRES: is_of_another_version(label).
void UpdateCoordinator::refuse_mixture(
    TimePoint now, Caller caller, const std::string& label, Out& out
) {
    const SessionCalls& calls = current()->calls();
    const std::string so_far =
        current()->is_collection()
            ? fmt::format("{} collected calls", calls.num_buckets())
            : fmt::format("{} calls of {}", calls.num_buckets(), current()->name());
    Error error = calls.mixture(label, so_far);
    driver_.drop(now, error, out);
    driver_.refuse(std::move(caller), std::move(error), out);
}

void UpdateCoordinator::lose_part(TimePoint now, const Error& why, Out& out) {
    if (!is_busy() || !current()->may_lack_part()) return;
    driver_.drop(
        now,
        make_error(
            ErrorCode::kAborted,
            "a call that may be a part of the version was refused: {}",
            why.message
        ),
        out
    );
}

void UpdateCoordinator::handle(
    TimePoint now, Caller caller, const messages::RefusedPart& call, Out& out
) {
    if (is_busy() && current()->may_lack_part() && !current()->caller()) {
        driver_.update().wait_for(now, std::move(caller), call.timeout_ms);
    } else {
        messages::UpdateReply reply = driver_.reply_now(caller);
        reply.ok = true;
        out.replies.emplace_back(std::move(caller), std::move(reply));
    }
    lose_part(now, {ErrorCode::kFailedPrecondition, call.why}, out);
}

void UpdateCoordinator::drop_collection(TimePoint now, Error why, Telling telling, Out& out) {
    if (telling == Telling::kDone) driver_.update().tell_loss();
    driver_.drop(now, std::move(why), out);
}

}  // namespace pitstop::tokenizer
