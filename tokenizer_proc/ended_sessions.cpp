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

std::optional<std::string> EndedSessions::loss(TimePoint now) {
    expire_loss(now);
    if (!loss_) return std::nullopt;
    return text_of(*loss_);
}

std::optional<std::string> EndedSessions::tell_loss(TimePoint now) {
    std::optional<std::string> text = loss(now);
    if (text) told_ = now;
    return text;
}

}  // namespace pitstop::tokenizer
