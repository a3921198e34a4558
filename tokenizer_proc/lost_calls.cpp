#include "tokenizer_proc/lost_calls.h"

#include "base/log.h"

#include <algorithm>

namespace pitstop::tokenizer {

void LostCalls::record(
    TimePoint now, const LostCollection& lost, const std::optional<std::string>& closing
) {
    const bool was_asked_for = lost.why.empty();
    // a caller that drops calls collected after an earlier loss may not know of that loss
    if (was_asked_for && is_untold()) return;
    Loss loss{.at = now, .refused_at = now, .is_told = was_asked_for, .told_peer = lost.told};
    if (closing) loss.told_peer = *closing;
    if (is_untold() && loss.told_peer != loss_->told_peer) loss.told_peer.clear();
    loss.calls = {.calls = lost.calls, .bytes = lost.bytes, .why = lost.why};
    loss.label = lost.label;
    if (was_asked_for)
        loss.calls.why = closing ? "a complete update took their place" : "drop_stage dropped them";
    loss.what = fmt::format(
        "{} calls without a session ({} bytes staged) take no effect", lost.calls, lost.bytes
    );
    loss_ = std::move(loss);
    remember();
    spdlog::warn("{}", error().message);
}

void LostCalls::record_missed_part(TimePoint now, const Error& why) {
    loss_ = Loss{
        .calls = {.why = why.message},
        .what = "a call without a session was refused, and takes no effect",
        .at = now,
        .refused_at = now,
        .is_missed_part = true};
    spdlog::warn("{}", error().message);
}

void LostCalls::record_standstill(TimePoint now, std::string why) {
    loss_ = Loss{
        .calls = {.why = std::move(why)},
        .what = "generation no longer stands still",
        .at = now,
        .refused_at = now,
        .is_told = true};
}

void LostCalls::record_of_previous_tree(TimePoint now, const std::string& why) {
    record_standstill(now, why);
    loss_->is_told = false;
    loss_->what = "calls without a session that were collected take no effect";
    spdlog::warn("{}", error().message);
}

void LostCalls::expire(TimePoint now) {
    const bool is_over = loss_ && loss_->is_told && !standings_.is_any_held() &&
                         !updates_.must_be_complete() && now >= loss_->refused_at + kQuiet;
    if (is_over) loss_.reset();
}

void LostCalls::remember() {
    if (loss_->label.empty()) return;
    if (!by_label_.contains(loss_->label) && by_label_.size() >= kLabelsMax) {
        by_label_.erase(std::ranges::min_element(by_label_, {}, [](const auto& entry) {
            return entry.second.second.at;
        }));
    }
    by_label_.insert_or_assign(loss_->label, std::pair{updates_.version().epoch, *loss_});
}

void LostCalls::recall(TimePoint now, const std::string& label) {
    const auto found = by_label_.find(label);
    if (found == by_label_.end()) return;
    if (loss_ && now < loss_->refused_at + kQuiet) return;
    loss_ = found->second.second;
    loss_->refused_at = now;
}

// Refuses a call. One without a label may come from the trainer whose calls were lost.
void LostCalls::tell(TimePoint now, const std::string& label) {
    loss_->refused_at = now;
    if (!label.empty() && label != loss_->label) return;
    loss_->is_part_refused = true;
    by_label_.erase(loss_->label);
}

void LostCalls::forget_labels_of_version() {
    std::erase_if(by_label_, [&](const auto& entry) {
        const auto& [epoch, loss] = entry.second;
        return entry.first == updates_.version().label && epoch != updates_.version().epoch;
    });
}

Error LostCalls::error() const {
    return make_error(
        ErrorCode::kAborted,
        "{}: {}. Epoch {} serves. {}, or make the call that lets generation continue{}",
        loss_->what,
        loss_->calls.why,
        raw(updates_.version().epoch),
        standings_.is_any_held() ? "Send every tensor again before generation goes on"
                                 : "Pause and send every tensor again",
        loss_->calls.calls == 0 && loss_->is_told ? "" : " (a second time, if this is the first)"
    );
}

Result<> LostCalls::check_continue(TimePoint now, const std::string& peer) {
    if (!loss_ || updates_.must_be_complete()) return Ok{};
    const bool is_told = loss_->is_told || loss_->told_peer == peer;
    const bool is_collecting = updates_.has_collection();
    if (is_told && !is_collecting) {
        // More calls of the lost version may follow, so the loss ends only when generation
        // continues.
        if (!standings_.is_any_held()) loss_.reset();
        return Ok{};
    }
    Error refusal = error();
    if (is_collecting) tell(now, updates_.collection_label());
    loss_->is_told = true;
    return refusal;
}

Result<> LostCalls::check_late_part(TimePoint now, const std::string& label) {
    if (!loss_ || now >= loss_->refused_at + kQuiet) return Ok{};
    Error refusal = error();
    tell(now, label);
    return refusal;
}

// A loss for which no caller was refused stays, because few clients read a pause's answer.
std::string LostCalls::note_for_pause() {
    if (!loss_) return "";
    std::string note = error().message;
    if (!standings_.is_any_held() && (loss_->is_told || loss_->is_part_refused)) loss_.reset();
    return note;
}

std::optional<messages::LostCalls> LostCalls::report(TimePoint now) const {
    if (!loss_) return std::nullopt;
    messages::LostCalls report = loss_->calls;
    report.age_s = seconds(now - loss_->at);
    return report;
}

}  // namespace pitstop::tokenizer
