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
    if (loss_ && told_ && now >= *told_ + kLossQuiet) loss_.reset();
    if (!loss_) return std::nullopt;
    told_ = now;
    return text_of(*loss_);
}

}  // namespace pitstop::tokenizer
