#include "tokenizer_proc/update_history.h"

#include "messages/adapters.h"

#include <string>

namespace pitstop::tokenizer {
namespace {

// Returns whether the reply's epoch, label and digest are those of a version of its adapter.
bool is_of_version(std::string_view what, const messages::UpdateReply& reply) {
    return reply.ok && reply.state != messages::UpdateState::kOpen &&
           what != messages::DropStage::kType;
}

}  // namespace

void UpdateHistory::record(
    TimePoint now, std::string_view what, const messages::UpdateReply& reply
) {
    if (reply.state == messages::UpdateState::kCollecting) return;  // no outcome yet
    const bool is_effect =
        what == messages::UpdateWeights::kType || what == messages::CommitWeights::kType ||
        what == messages::RollbackWeights::kType || what == messages::UnloadAdapter::kType;
    Outcomes& outcomes = reply.adapter.empty() ? model_ : adapters_;
    if (is_effect) ++(reply.ok ? outcomes.num_done : outcomes.num_failed);
    messages::UpdateRecord record{
        .what = std::string(what),
        .ok = reply.ok,
        .verdict = reply.verdict,
        .bytes = reply.bytes,
        .seconds = reply.seconds,
        .adapter = reply.adapter};
    if (reply.adapter.empty() || is_of_version(what, reply)) {
        record.epoch = reply.epoch;
        record.label = reply.label;
        record.digest = reply.digest;
    }
    outcomes.past.push_back({now, std::move(record)});
    if (outcomes.past.size() > kShown) outcomes.past.pop_front();
}

void UpdateHistory::report(TimePoint now, messages::StatusReply& reply) const {
    reply.updates_total = model_.num_done;
    reply.updates_failed_total = model_.num_failed;
    reply.adapter_updates_total = adapters_.num_done;
    reply.adapter_updates_failed_total = adapters_.num_failed;
    show(now, model_, reply.updates);
    show(now, adapters_, reply.adapter_updates);
}

void UpdateHistory::show(
    TimePoint now, const Outcomes& outcomes, std::vector<messages::UpdateRecord>& shown
) {
    for (const Past& past : outcomes.past) {
        shown.push_back(past.record);
        shown.back().age_s = seconds(now - past.at);
    }
}

}  // namespace pitstop::tokenizer
