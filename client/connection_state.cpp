#include "client/connection_state.h"

#include <algorithm>

namespace pitstop {

void ConnectionState::publish(std::span<const Link> links) {
    const Link& data = links.front();
    const bool is_ready = std::ranges::all_of(links, [&](const Link& link) {
        return link.is_ready() && link.tree() == data.tree();
    });
    const auto refused =
        std::ranges::find_if(links, [](const Link& link) { return link.refusal().has_value(); });
    const bool is_known = data.tree() == published_tree_;
    if (is_ready == is_connected_ && is_known && refused == links.end()) return;
    const MutexLock lock(mutex_);
    hello_ = data.hello();
    published_tree_ = data.tree();
    if (!is_known && !data.tree().empty()) ++num_trees_;
    is_connected_ = is_ready;
    refusal_ = refused == links.end() ? std::nullopt : refused->refusal();
    changed_.notify_all();
}

messages::HelloReply ConnectionState::hello() const {
    const MutexLock lock(mutex_);
    return hello_;
}

Result<> ConnectionState::wait_ready(std::chrono::milliseconds timeout, std::string_view endpoint) {
    MutexLock lock(mutex_);
    const TimePoint deadline = Clock::now() + timeout;
    while (!is_connected_ && !refusal_ && changed_.wait_until(lock, deadline)) continue;
    if (refusal_) return *refusal_;
    if (is_connected_) return Ok{};
    return make_error(
        ErrorCode::kUnavailable, "no tree is ready at {} after {} ms", endpoint, timeout.count()
    );
}

}  // namespace pitstop
