#include "tokenizer_proc/admin_updates.h"

#include "base/log.h"

#include <variant>

namespace pitstop::tokenizer {

void AdminUpdates::set_version(
    const ReplicaHellos& hellos,
    const std::string& weights_path,
    const std::optional<messages::LostVersion>& lost
) {
    for (int i = 0; i < num_replicas_; ++i)
        coordinator_.set_has_weights(ReplicaId{i}, hellos.has_weights(i));
    has_had_weights_ = coordinator_.has_weights();
    const messages::SchedulerHello& first = hellos.first();
    coordinator_.set_version(
        {.epoch = first.epoch,
         .label = first.label,
         .digest = first.digest,
         .path = has_had_weights_ ? weights_path : std::string()}
    );
    lost_ = lost;
    if (lost_) lost_->epoch = first.epoch;
    say_version();
}

AdminUpdates::Events AdminUpdates::execute(TimePoint now, UpdateOutput&& out) {
    Events events{
        .lost = std::move(out.lost),
        .has_made_whole = out.has_made_whole,
        .notes = std::move(out.notes),
        .part_refused = std::move(out.part_refused)};
    // before a commit is ordered, so that every version that tokens name is on record
    say_version();
    for (const ReplicaOrder& each : out.orders)
        std::visit([&](const auto& message) { out_.order(message); }, each);
    if (coordinator_.has_weights()) {
        has_had_weights_ = true;
        lost_.reset();
    }
    const ServedVersion& version = coordinator_.version();
    if (keep_ && !coordinator_.is_torn() && version.epoch != keep_->version().epoch)
        out_.order(keep_->committed(now, version), ReplicaId{0});
    for (auto& [caller, reply] : out.replies) {
        history_.record(now, caller.what, reply);
        if (caller.what == messages::BeginUpdate::kType && reply.ok)
            events.has_begun_session = true;
        if (caller.what == ReturningAdapters::kWhat) {
            returning_.record(reply);
        } else if (caller.peer.empty()) {
            events.own = std::move(reply);
        } else {
            out_.answer(AdminCaller{caller.peer, caller.call}, std::move(reply));
        }
    }
    return events;
}

void AdminUpdates::relabel(std::string label) {
    coordinator_.relabel(std::move(label));
    say_version();
}

void AdminUpdates::say_version() {
    if (coordinator_.decided() == said_) return;
    said_ = coordinator_.decided();
    serves_.push_back(said_);
}

void AdminUpdates::record_kept(TimePoint now, const messages::WorkerKept& part) {
    if (!keep_) return;
    const std::optional<messages::WorkerKeep> next = keep_->part(now, part);
    if (next) out_.order(*next, ReplicaId{0});
    const messages::KeepStatus status = keep_->status(now);
    if (status.state == messages::KeepState::kFailed && next) {
        spdlog::warn("epoch {} is not kept: {}", raw(status.epoch), status.message);
    } else if (status.state == messages::KeepState::kKept) {
        spdlog::info("epoch {} is kept in {}", raw(status.epoch), status.path);
    }
}

void AdminUpdates::record_unload(TimePoint now, const messages::AdapterReply& reply) {
    messages::UpdateReply outcome{.ok = reply.ok, .verdict = reply.verdict};
    for (const messages::AdapterPart& part : reply.parts) {
        outcome.adapter = part.adapter.name;
        if (!reply.ok || part.was_lost) continue;
        outcome.epoch = part.adapter.version;
        outcome.label = part.adapter.label;
        outcome.digest = part.adapter.digest;
    }
    history_.record(now, messages::UnloadAdapter::kType, outcome);
}

void AdminUpdates::record_failure(
    TimePoint now, std::string_view what, const std::string& adapter, const Error& why
) {
    if (!adapter.empty()) history_.record(now, what, {.verdict = why, .adapter = adapter});
}

void AdminUpdates::report(TimePoint now, messages::StatusReply& reply) const {
    reply.weights_path = coordinator_.version().path;
    reply.is_ready = has_had_weights_;
    reply.lost = lost_;
    if (keep_) reply.keep = keep_->status(now);
    reply.collecting = coordinator_.collecting(now);
    reply.session = coordinator_.session(now);
    history_.report(now, reply);
}

}  // namespace pitstop::tokenizer
