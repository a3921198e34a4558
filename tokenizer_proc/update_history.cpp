#include "tokenizer_proc/update_history.h"

#include <string>

namespace pitstop::tokenizer {

void UpdateHistory::record(
    TimePoint now, std::string_view what, const messages::UpdateReply& reply
) {
    if (reply.state == messages::UpdateState::kCollecting) return;  // no outcome yet
    const bool is_effect = what == messages::UpdateWeights::kType ||
                           what == messages::CommitWeights::kType ||
                           what == messages::RollbackWeights::kType;
    if (is_effect) ++(reply.ok ? num_updates_ : num_failed_);
    past_.push_back(
        {now,
         {.what = std::string(what),
          .ok = reply.ok,
          .verdict = reply.verdict,
          .epoch = reply.epoch,
          .label = reply.label,
          .digest = reply.digest,
          .bytes = reply.bytes,
          .seconds = reply.seconds}}
    );
    if (past_.size() > kShown) past_.pop_front();
}

void UpdateHistory::report(TimePoint now, messages::StatusReply& reply) const {
    reply.updates_total = num_updates_;
    reply.updates_failed_total = num_failed_;
    for (const Past& past : past_) {
        reply.updates.push_back(past.record);
        reply.updates.back().age_s = seconds(now - past.at);
    }
}

}  // namespace pitstop::tokenizer
