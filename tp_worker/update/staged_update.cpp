#include "tp_worker/update/staged_update.h"

#include "messages/codec.h"

namespace pitstop::tp_worker {
namespace {

// Makes a rank's answer to a bucket; bucket 0: the session is open.
messages::Frames filled(
    messages::UpdateId update, std::int64_t bucket, messages::RankOutcome outcome
) {
    messages::WorkerFilled answer;
    answer.update = update;
    answer.bucket = bucket;
    answer.outcome = std::move(outcome);
    return encode(answer);
}

}  // namespace

messages::Frames refusal_of(const messages::WorkerStage& order, Rank rank, Error why) {
    messages::WorkerStaged vote;
    vote.update = order.update;
    vote.outcome.rank = rank;
    vote.outcome.code = why.code;
    vote.outcome.problems = {std::move(why.message)};
    vote.outcome.num_problems = 1;
    if (order.spec.source.kind == messages::SourceKind::kBuckets)
        return filled(order.update, 0, std::move(vote.outcome));
    return encode(vote);
}

bool StagedUpdate::may(messages::UpdateOrder order) {
    if (const auto answer = answer_.exchange(std::nullopt)) round_.record_answer(0, *answer);
    return round_.may(order);
}

void StagedUpdate::stand() {
    round_.ask(messages::UpdateOrder::kReady);
    round_.finish();
}

void StagedUpdate::begin_fill(const StageArgs& args) {
    fill.emplace(args);
    if (is_rollback) fill->allow_none();
    fill->begin_work();
}

messages::Frames StagedUpdate::run(
    messages::UpdateOrder order, std::int64_t bucket, const Job& job
) {
    fill->begin_work();
    const Result<> result = job(*this);
    fill->end_work();
    answer_ =
        result ? messages::UpdateRound::Answer::kDone : messages::UpdateRound::Answer::kFailed;
    if (order != messages::UpdateOrder::kStage)
        return filled(update, bucket, fill->outcome(result));
    messages::WorkerStaged vote = fill->vote(result);
    adapter.describe_in(vote);
    return encode(vote);
}

}  // namespace pitstop::tp_worker
