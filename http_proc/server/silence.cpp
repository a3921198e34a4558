#include "http_proc/server/silence.h"

#include "client/client.h"
#include "client/standstill.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pitstop::http {

std::uint64_t Silence::add(OnTold on_told, TimePoint now) {
    if (waiting_.empty()) last_output_ = now;
    waiting_.emplace(next_number_, Waiting{.on_told = std::move(on_told), .told_at = now});
    return next_number_++;
}

bool Silence::is_due(const Waiting& waiting, TimePoint now) const {
    const auto since = now - waiting.told_at;
    return waiting.was_told ? since >= kTellAgain : since >= kSilenceMax;
}

void Silence::beat(Client& client, TimePoint now) {
    if (is_asking_ || now - last_output_ < kSilenceMax || now - asked_at_ < kSilenceMax) return;
    const bool is_any_due =
        std::ranges::any_of(waiting_, [&](const auto& each) { return is_due(each.second, now); });
    if (!is_any_due) return;
    is_asking_ = true;
    asked_at_ = now;
    client.call(
        messages::Status{},
        std::function<void(Result<messages::StatusReply>)>(
            [this, weak = std::weak_ptr<bool>(is_there_)](Result<messages::StatusReply>&& status) {
                if (weak.expired()) return;
                is_asking_ = false;
                if (!status) return;
                if (const auto why = why_it_stands(*status)) tell(*why, Clock::now());
            }
        )
    );
}

// Holds weak references to callbacks, because a callback may end any request.
void Silence::tell(const std::string& why, TimePoint now) {
    std::vector<OnTold> due;
    for (auto& [number, waiting] : waiting_) {
        if (!is_due(waiting, now)) continue;
        waiting.told_at = now;
        waiting.was_told = true;
        due.push_back(waiting.on_told);
    }
    for (const OnTold& on_told : due) on_told(why);
}

}  // namespace pitstop::http
