#include "tokenizer_proc/ended_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

void EndedSessions::record(Ended ended) {
    ended_.push_back(std::move(ended));
    if (ended_.size() > kEndedMax) ended_.pop_front();
}

std::string EndedSessions::text_of(const Ended& ended) {
    return fmt::format("{} is over: it {}", ended.what, ended.how);
}

std::optional<std::string> EndedSessions::end_of(std::uint64_t session) const {
    const auto place = std::ranges::find(ended_, session, &Ended::session);
    if (place == ended_.end()) return std::nullopt;
    return text_of(*place);
}

std::string EndedSessions::adapter_of(std::uint64_t session) const {
    const auto place = std::ranges::find(ended_, session, &Ended::session);
    return place == ended_.end() ? std::string() : place->adapter;
}

void EndedSessions::record_loss() {
    const Ended& session = ended_.back();
    if (!losses_.contains(session.adapter) && losses_.size() >= kEndedMax) {
        losses_.erase(std::ranges::min_element(losses_, {}, [](const auto& entry) {
            return entry.second.session.session;
        }));
    }
    losses_.insert_or_assign(session.adapter, Loss{.session = session});
}

EndedSessions::Loss* EndedSessions::find_loss(TimePoint now, const std::string& adapter) {
    expire_losses(now);
    const auto place = adapter.empty() ? losses_.begin() : losses_.find(adapter);
    return place == losses_.end() ? nullptr : &place->second;
}

std::optional<std::string> EndedSessions::loss(TimePoint now, const std::string& adapter) {
    const Loss* loss = find_loss(now, adapter);
    if (loss == nullptr) return std::nullopt;
    return text_of(loss->session);
}

std::optional<std::string> EndedSessions::tell_loss(TimePoint now, const std::string& adapter) {
    Loss* loss = find_loss(now, adapter);
    if (loss == nullptr) return std::nullopt;
    loss->told = now;
    return text_of(loss->session);
}

void EndedSessions::forget_told_loss(const std::string& adapter) {
    const auto place = losses_.find(adapter);
    if (place != losses_.end() && place->second.told) losses_.erase(place);
}

bool EndedSessions::forget_told_losses() {
    const auto is_told = [](const auto& entry) { return entry.second.told.has_value(); };
    return std::erase_if(losses_, is_told) > 0;
}

void EndedSessions::expire_losses(TimePoint now) {
    std::erase_if(losses_, [&](const auto& entry) {
        const std::optional<TimePoint>& told = entry.second.told;
        return told && now >= *told + kLossQuiet;
    });
}

std::optional<EndedSessions::Ended> EndedSessions::lost() const {
    if (losses_.empty()) return std::nullopt;
    return losses_.begin()->second.session;
}

}  // namespace pitstop::tokenizer
