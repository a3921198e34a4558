// What the tree's processes answer to the calls that Admin passed on.
#include "base/log.h"
#include "tokenizer_proc/admin.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

Result<bool> Admin::part(TimePoint now, const messages::Frames& frames) {
    using Parts = messages::MessageList<
        messages::ReplicaStatus,
        messages::PausePart,
        messages::ContinuePart,
        messages::FlushPart,
        messages::LabelPart,
        messages::MemoryPart,
        messages::UpdatePart,
        messages::UpdateWaits,
        messages::WorkerTensor,
        messages::WorkerDigests,
        messages::WorkerGrouped,
        messages::WorkerKept>;
    return Parts::dispatch(frames, messages::UnknownFields::kIgnore, [&](auto part) -> Result<> {
        hear(now, std::move(part));
        return Ok{};
    });
}

void Admin::hear(TimePoint now, messages::ReplicaStatus part) {
    updates_.set_has_weights(part.replica, part.has_weights);
    auto ended = statuses_.add(part.call, part.replica, part);
    if (!ended) return;
    messages::StatusReply reply;
    reply.replicas = std::move(ended->parts);
    for (messages::ReplicaStatus& replica : reply.replicas) replica.call = CallId{};
    is_paused_ = std::ranges::any_of(reply.replicas, [](const messages::ReplicaStatus& replica) {
        return !replica.pause_mode.empty();
    });
    ports_.describe(reply);
    reply.is_ready = has_had_weights_;
    reply.lost = lost_;
    if (keep_) reply.keep = keep_->status(now);
    reply.collecting = updates_.collecting(now);
    reply.updates_total = num_updates_;
    reply.updates_failed_total = num_updates_failed_;
    for (const PastUpdate& past : past_updates_) {
        reply.updates.push_back(past.record);
        reply.updates.back().age_s = std::chrono::duration<double>(now - past.at).count();
    }
    answer(ended->caller, std::move(reply));
}

// The one reply of all parts: ok if each of them is.
template <class Reply, class Part>
void Admin::answer_parts(typename FanOut<Part>::Ended ended) {
    Reply reply;
    reply.ok = true;
    for (Part& part : ended.parts) {
        part.call = CallId{};
        const bool is_ok = part.verdict.is_done();
        std::string& text = reply.verdict.message;
        if (!is_ok && reply.ok) {
            reply.ok = false;
            reply.verdict.code = part.verdict.code;
            text.clear();  // errors alone, once there is one
        }
        if (part.verdict.message.empty() || is_ok != reply.ok) continue;
        if (!text.empty()) text += "; ";
        text += fmt::format("replica {}: {}", raw(part.replica), part.verdict.message);
    }
    reply.parts = std::move(ended.parts);
    answer(ended.caller, std::move(reply));
}

void Admin::hear(TimePoint, messages::PausePart part) {
    if (auto ended = pauses_.add(part.call, part.replica, part)) {
        answer_parts<messages::PauseReply, messages::PausePart>(*std::move(ended));
    }
}
void Admin::hear(TimePoint, messages::ContinuePart part) {
    if (auto ended = continues_.add(part.call, part.replica, part)) {
        const auto goes_on = [](const messages::ContinuePart& each) {
            return each.verdict.is_done();
        };
        if (std::ranges::all_of(ended->parts, goes_on)) is_paused_ = false;
        answer_parts<messages::ContinueReply, messages::ContinuePart>(*std::move(ended));
    }
}
void Admin::hear(TimePoint, messages::FlushPart part) {
    if (auto ended = flushes_.add(part.call, part.replica, part)) {
        answer_parts<messages::FlushReply, messages::FlushPart>(*std::move(ended));
    }
}
void Admin::hear(TimePoint, messages::LabelPart part) {
    auto ended = labels_.add(part.call, part.replica, part);
    if (!ended) return;
    const bool is_done = std::ranges::all_of(ended->parts, [](const messages::LabelPart& each) {
        return each.verdict.is_done();
    });
    if (is_done) {
        updates_.relabel(ended->parts.front().label);
        say_version();
    }
    answer_parts<messages::LabelReply, messages::LabelPart>(*std::move(ended));
}
void Admin::hear(TimePoint, messages::MemoryPart part) {
    updates_.set_has_weights(part.replica, part.has_weights);
    is_released_ = std::ranges::any_of(part.tags, [](const messages::TagMemory& tag) {
        return tag.state != messages::MemoryState::kResident;
    });
    auto ended = memories_.add(part.call, part.replica, part);
    if (!ended) return;
    // Done before on some replicas and now on the others: done everywhere.
    const bool is_any_done = std::ranges::any_of(
        ended->parts, [](const messages::MemoryPart& each) { return each.verdict.is_done(); }
    );
    for (messages::MemoryPart& each : ended->parts) {
        if (is_any_done && each.was_done) each.verdict.code.reset();
    }
    answer_parts<messages::MemoryReply, messages::MemoryPart>(*std::move(ended));
}

void Admin::hear(TimePoint now, const messages::UpdatePart& part) {
    UpdateCoordinator::Out out;
    updates_.part(now, part, out);
    carry_out(now, std::move(out));
}

void Admin::hear(TimePoint, messages::UpdateWaits waits) { updates_.waits(std::move(waits)); }

void Admin::hear(TimePoint, messages::WorkerTensor part) {
    const auto place = tensor_reads_.find(part.call);
    if (place == tensor_reads_.end()) return;  // too late, or a copy
    std::optional<Result<messages::WeightsReply>> read = place->second.read.add(std::move(part));
    if (!read) return;
    if (*read) {
        answer(place->second.caller, **std::move(read));
    } else {
        answer_error(place->second.caller, read->error());
    }
    tensor_reads_.erase(place);
}

void Admin::hear(TimePoint, messages::WorkerDigests part) {
    const auto place = digest_reads_.find(part.call);
    if (place == digest_reads_.end()) return;
    std::optional<messages::DigestsReply> reply = place->second.read.add(std::move(part));
    if (!reply) return;
    answer(place->second.caller, *std::move(reply));
    digest_reads_.erase(place);
}

void Admin::hear(TimePoint, messages::WorkerGrouped part) {
    const auto place = group_calls_.find(part.call);
    if (place == group_calls_.end()) return;
    std::optional<messages::GroupReply> reply = place->second.read.add(std::move(part));
    if (!reply) return;
    answer(place->second.caller, *std::move(reply));
    group_calls_.erase(place);
}

void Admin::hear(TimePoint now, const messages::WorkerKept& part) {
    if (!keep_) return;
    const std::optional<messages::WorkerKeep> next = keep_->part(now, part);
    if (next) ports_.to_replica(ReplicaId{0}, encode(*next));
    const messages::KeepStatus status = keep_->status(now);
    if (status.state == "failed" && next) {
        spdlog::warn("epoch {} is not kept: {}", raw(status.epoch), status.message);
    } else if (status.state == "kept") {
        spdlog::info("epoch {} is kept in {}", raw(status.epoch), status.path);
    }
}

}  // namespace pitstop::tokenizer
