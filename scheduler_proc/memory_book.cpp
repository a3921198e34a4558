#include "scheduler_proc/memory_book.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {

MemoryBook::MemoryBook(int tp)
    : tp_(tp), ranks_(static_cast<std::size_t>(tp)), graph_bytes_(static_cast<std::size_t>(tp)) {
    for (auto& rank : ranks_) {
        for (const messages::MemoryTag tag : messages::kAllMemoryTags)
            rank[index_of(tag)].tag = tag;
    }
}

bool MemoryBook::is_all_resident() const {
    return std::ranges::all_of(states_, [](messages::MemoryState state) {
        return state == messages::MemoryState::kResident;
    });
}

std::string MemoryBook::what_is_missing() const {
    std::string text;
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        if (is_resident(tag)) continue;
        const std::string_view how =
            state(tag) == messages::MemoryState::kReleasing  ? "being released"
            : state(tag) == messages::MemoryState::kResuming ? "being resumed"
                                                             : "released";
        text += fmt::format("{}{} is {}", text.empty() ? "" : ", ", name_of(tag), how);
    }
    return text;
}

std::vector<messages::MemoryTag> MemoryBook::tags_for(
    messages::MemoryAction action, const std::vector<messages::MemoryTag>& tags
) const {
    if (!tags.empty()) return tags;
    const messages::MemoryState from = action == messages::MemoryAction::kRelease
                                           ? messages::MemoryState::kResident
                                           : messages::MemoryState::kReleased;
    std::vector<messages::MemoryTag> all;
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        if (state(tag) == from) all.push_back(tag);
    }
    return all;
}

std::optional<Error> MemoryBook::problem_of(
    messages::MemoryAction action, const std::vector<messages::MemoryTag>& tags, bool& is_done
) const {
    is_done = false;
    const bool is_release = action == messages::MemoryAction::kRelease;
    if (job_) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "a {} of memory is under way ({})",
            name_of(job_->action),
            what_is_missing()
        );
    }
    const messages::MemoryState from =
        is_release ? messages::MemoryState::kResident : messages::MemoryState::kReleased;
    const auto is_there = [&](messages::MemoryTag tag) { return state(tag) == from; };
    if (!tags.empty() && std::ranges::all_of(tags, is_there)) return std::nullopt;
    is_done = std::ranges::none_of(tags, is_there);
    if (tags.empty()) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "{}",
            is_release ? "weights and kv_cache are already released"
                       : "weights and kv_cache are not currently released (continue ends a pause)"
        );
    }
    const messages::MemoryTag wrong = *std::ranges::find_if_not(tags, is_there);
    return make_error(
        ErrorCode::kFailedPrecondition,
        "{} is {}",
        name_of(wrong),
        is_release ? "already released" : "not currently released"
    );
}

void MemoryBook::begin(Job job) {
    CHECK(!job_ && !job.tags.empty());
    for (const messages::MemoryTag tag : job.tags) {
        states_[index_of(tag)] = job.action == messages::MemoryAction::kRelease
                                     ? messages::MemoryState::kReleasing
                                     : messages::MemoryState::kResuming;
    }
    job.has_answered.assign(static_cast<std::size_t>(tp_), false);
    job_ = std::move(job);
}

messages::WorkerMemory MemoryBook::order() const {
    CHECK(job_);
    messages::MemoryAction action = job_->action;
    if (job_->is_turned_back) {
        action = action == messages::MemoryAction::kRelease ? messages::MemoryAction::kResume
                                                            : messages::MemoryAction::kRelease;
    }
    return {
        .call = job_->order,
        .action = action,
        .tags = job_->tags,
        .keep_weights = job_->keep_weights,
    };
}

bool MemoryBook::handle_done(const messages::WorkerMemoryDone& answer) {
    if (answer.call == CallId{}) return accept_measured(answer);
    const auto rank = static_cast<std::size_t>(raw(answer.rank));
    if (!job_ || !job_->is_sent || answer.call != job_->order || raw(answer.rank) < 0 ||
        rank >= ranks_.size() || job_->has_answered[rank]) {
        return false;
    }
    job_->has_answered[rank] = true;
    for (const messages::TagMemory& measured : answer.tags) {
        const auto at = index_of(measured.tag);
        if (at < ranks_[rank].size()) ranks_[rank][at] = measured;
    }
    if (answer.verdict.is_done() && !job_->is_turned_back) ++job_->num_done;
    if (!answer.verdict.is_done() && job_->is_turned_back) job_->has_way_back_failed = true;
    if (!answer.verdict.is_done() && !job_->failure) {
        // Keeps the error until every rank has answered: only then may ranks be ordered back.
        job_->failure = make_error(
            answer.verdict.error().code, "rank {}: {}", raw(answer.rank), answer.verdict.message
        );
    }
    return true;
}

// Never subtracts: bytes that an order freed stay counted as freed.
bool MemoryBook::accept_measured(const messages::WorkerMemoryDone& answer) {
    if (raw(answer.rank) < 0 || raw(answer.rank) >= tp_) return false;
    const auto rank = static_cast<std::size_t>(raw(answer.rank));
    graph_bytes_[rank] = answer.graph_bytes;
    auto& tags = ranks_[rank];
    for (const messages::TagMemory& measured : answer.tags) {
        messages::TagMemory& tag = tags[index_of(measured.tag)];
        tag.resident_bytes = measured.resident_bytes;
        tag.host_bytes = measured.host_bytes;
    }
    return true;
}

bool MemoryBook::have_all_answered() const {
    return job_ && job_->is_sent &&
           std::ranges::all_of(job_->has_answered, [](bool answered) { return answered; });
}

void MemoryBook::turn_back() {
    CHECK(have_all_answered() && job_->failure && !job_->is_turned_back);
    job_->is_turned_back = true;
    job_->order = next(job_->order);
    job_->has_answered.assign(static_cast<std::size_t>(tp_), false);
}

MemoryBook::Job MemoryBook::finish() {
    CHECK(have_all_answered());
    const bool is_released = (job_->action == messages::MemoryAction::kRelease) == !job_->failure ||
                             job_->has_way_back_failed;
    for (const messages::MemoryTag tag : job_->tags) {
        states_[index_of(tag)] =
            is_released ? messages::MemoryState::kReleased : messages::MemoryState::kResident;
        are_apart_[index_of(tag)] = job_->has_way_back_failed;
    }
    Job done = *std::move(job_);
    job_.reset();
    return done;
}

MemoryBook::Job MemoryBook::cancel() {
    CHECK(job_ && !job_->is_sent);
    for (const messages::MemoryTag tag : job_->tags) {
        states_[index_of(tag)] = job_->action == messages::MemoryAction::kRelease
                                     ? messages::MemoryState::kResident
                                     : messages::MemoryState::kReleased;
    }
    Job job = *std::move(job_);
    job_.reset();
    return job;
}

std::vector<messages::TagMemory> MemoryBook::totals() const {
    std::vector<messages::TagMemory> totals;
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        messages::TagMemory total{.tag = tag, .state = state(tag)};
        for (const auto& rank : ranks_) {
            total.resident_bytes += rank[index_of(tag)].resident_bytes;
            total.host_bytes += rank[index_of(tag)].host_bytes;
            total.freed_bytes += rank[index_of(tag)].freed_bytes;
        }
        totals.push_back(total);
    }
    return totals;
}

std::string MemoryBook::who_is_missing() const {
    std::string names;
    for (std::size_t rank = 0; job_ && rank < job_->has_answered.size(); ++rank) {
        if (job_->has_answered[rank]) continue;
        names += fmt::format("{}rank {}", names.empty() ? "" : ", ", rank);
    }
    return names;
}

}  // namespace pitstop::scheduler
