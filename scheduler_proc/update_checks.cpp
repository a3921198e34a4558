#include "scheduler_proc/update_checks.h"

#include "messages/source_reach.h"
#include "messages/sparse_buckets.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace pitstop::scheduler {
namespace {

std::string is_under_way(const UpdateJob& job) {
    return fmt::format("update {} is under way", static_cast<std::uint64_t>(job.id));
}

// A rank of another machine cannot read memory of this one.
std::optional<Error> problem_of_reach(
    const messages::WeightSource& source, const SchedulerConfig& config
) {
    const std::string_view memory = messages::shared_memory_of(source);
    if (config.nodes == 1 || memory.empty()) return std::nullopt;
    return make_error(
        ErrorCode::kUnsupported,
        "a source of {} uses memory of one machine, but replica {} spans {} (--nodes); accepted "
        "are {}",
        memory,
        raw(config.replica),
        config.nodes,
        messages::kSourcesThatTravel
    );
}

}  // namespace

messages::UpdateOrder order_of(const messages::UpdateStage& order) {
    return order.spec.source.kind == messages::SourceKind::kBuckets ? messages::UpdateOrder::kOpen
                                                                    : messages::UpdateOrder::kStage;
}

std::optional<Error> problem_of_stage(
    const messages::UpdateStage& order, const WhyNot& why_not, const UpdateFacts& facts
) {
    if (why_not) return wrong_order("stage", order.update, *why_not);
    if (const auto problem = messages::invalid(order.spec))
        return Error{ErrorCode::kInvalidArgument, *problem};
    if (auto error = problem_of_reach(order.spec.source, facts.config)) return error;
    if (order.spec.adapter.empty()) {  // an adapter's version is checked by Adapters
        if (auto error = facts.weights.problem_of(order.new_epoch)) return error;
    }
    if (!facts.weights.are_whole() && order.spec.partial && order.spec.adapter.empty()) {
        return wrong_order(
            "stage", order.update, "torn or without weights; only a complete update repairs it"
        );
    }
    const std::optional<UpdateJob>& job = facts.job;
    if (order.spec.mode == messages::UpdateMode::kDirect) {
        // A direct update overwrites the serving weights: allowed only after this replica stopped.
        if (!job || !job->may(order.update, order_of(order)) ||
            job->phase() != messages::UpdatePhase::kStopped)
            return wrong_order("direct stage", order.update, "the replica has not stopped for it");
    } else if (job) {
        return wrong_order("stage", order.update, is_under_way(*job));
    }
    return std::nullopt;
}

std::optional<Error> problem_of_fill(const messages::UpdateFill& order, const UpdateFacts& facts) {
    if (const auto problem = messages::invalid(order.source))
        return Error{ErrorCode::kInvalidArgument, *problem};
    if (auto error = problem_of_reach(order.source, facts.config)) return error;
    if (!facts.job || !facts.job->may(order.update, messages::UpdateOrder::kFill))
        return wrong_order("fill", order.update, "its session is not open");
    if (const auto problem = messages::problem_of_bucket(facts.job->spec, order.source))
        return wrong_order("fill", order.update, *problem);
    return std::nullopt;
}

std::optional<Error> problem_of_order(
    std::string_view order,
    messages::UpdateId update,
    const WhyNot& why_not,
    const UpdateFacts& facts
) {
    if (why_not) return wrong_order(order, update, *why_not);
    if (facts.job) return wrong_order(order, update, is_under_way(*facts.job));
    return std::nullopt;
}

std::optional<Error> problem_of_rollback(
    const messages::UpdateRollback& order, const WhyNot& why_not, const UpdateFacts& facts
) {
    if (auto error = problem_of_order("rollback", order.update, why_not, facts)) return error;
    if (!facts.weights.retained() || !facts.weights.are_whole())
        return wrong_order("rollback", order.update, "no previous version is retained");
    return facts.weights.problem_of(order.new_epoch);
}

// A staged update and a rollback are prepared before `ready`. A direct update is made ready before
// it is staged.
std::optional<Error> problem_of_ready(
    const messages::UpdateReady& order, const WhyNot& why_not, const UpdateFacts& facts
) {
    const std::optional<UpdateJob>& job = facts.job;
    if (job && job->id != order.update)
        return wrong_order("ready", order.update, "another update is under way");
    if (job && !job->round.may(messages::UpdateOrder::kReady)) {
        const bool is_early = job->phase() < messages::UpdatePhase::kPrepared;
        return wrong_order(
            "ready", order.update, is_early ? "not every rank is prepared" : "ordered before"
        );
    }
    if (why_not) return wrong_order("ready", order.update, *why_not);
    return std::nullopt;
}

std::optional<Error> problem_of_commit(
    const messages::UpdateCommit& order, const UpdateFacts& facts
) {
    const std::optional<UpdateJob>& job = facts.job;
    if (!job || job->id != order.update)
        return wrong_order("commit", order.update, "no such update");
    if (job->round.may(messages::UpdateOrder::kCommit)) return std::nullopt;
    const messages::UpdatePhase phase = job->phase();
    if (phase >= messages::UpdatePhase::kCommitting)
        return wrong_order("commit", order.update, "ended before");
    if (phase == messages::UpdatePhase::kPrepared || phase == messages::UpdatePhase::kReadying)
        return wrong_order("commit", order.update, "not standing ready");
    return wrong_order("commit", order.update, "not every rank is prepared");
}

}  // namespace pitstop::scheduler
