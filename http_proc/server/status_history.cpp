#include "http_proc/server/status_history.h"

#include "client/client.h"

#include <algorithm>
#include <functional>

namespace pitstop::http {

void StatusHistory::beat(Client& client, const RequestMetrics& requests, TimePoint now) {
    if (is_asking_ || now - asked_at_ < kPeriod) return;
    is_asking_ = true;
    asked_at_ = now;
    client.call(
        messages::Status{},
        std::function<void(Result<messages::StatusReply>)>(
            [this,
             &requests,
             weak = std::weak_ptr<bool>(is_there_)](Result<messages::StatusReply>&& status) {
                if (weak.expired()) return;
                is_asking_ = false;
                if (status) add(*status, requests, Clock::now());
            }
        )
    );
}

StatusHistory::Ended StatusHistory::ended_of(const messages::StatusReply& status) {
    Ended ended;
    for (const messages::ReplicaStatus& replica : status.replicas) {
        for (const messages::FinishCount& finished : replica.finished) {
            ended.all += finished.requests;
            if (finished.reason == messages::FinishReason::kError)
                ended.errors += finished.requests;
            if (finished.reason == messages::FinishReason::kAbort)
                ended.aborted += finished.requests;
        }
    }
    return ended;
}

void StatusHistory::add(
    const messages::StatusReply& status, const RequestMetrics& requests, TimePoint now
) {
    Point point{
        .at = now,
        .ended = ended_of(status),
        .first_token = requests.first_token,
        .between_tokens = requests.between_tokens,
        .queue = requests.queue};
    for (const messages::ReplicaStatus& replica : status.replicas) {
        point.tokens_per_s += replica.output_tokens_per_s;
        point.step_age_s = std::max(point.step_age_s, replica.step_age_s);
        point.is_paused = point.is_paused || !replica.pause_mode.empty();
        point.epochs.push_back(replica.epoch);
    }
    // The counters fell, so they are of another tree: they start from zero.
    if (!points_.empty() && point.ended.all < points_.back().ended.all) points_.clear();
    points_.push_back(std::move(point));
    while (points_.size() > kPointsMax || now - points_.front().at > kWindow) points_.pop_front();
}

}  // namespace pitstop::http
