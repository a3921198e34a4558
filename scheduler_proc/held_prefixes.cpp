#include "scheduler_proc/held_prefixes.h"

#include <algorithm>
#include <iterator>

namespace pitstop::scheduler {

void HeldPrefixes::drop(Order::iterator one, PrefixCache& cache) {
    drop_state(*one, cache);
    cache.unhold(one->nodes);
    num_pages_ -= std::ssize(one->nodes);
    places_.erase(one->conversation);
    order_.erase(one);
}

void HeldPrefixes::hold(
    messages::ConversationId conversation, std::span<const PageId> path, PrefixCache& cache
) {
    end(conversation, cache);
    const auto num = std::min<std::int64_t>(std::ssize(path), pages_max_);
    if (num == 0) return;
    const auto held = path.first(static_cast<std::size_t>(num));
    order_.push_back({.conversation = conversation, .nodes = cache.hold(held)});
    places_[conversation] = std::prev(order_.end());
    num_pages_ += num;
    hold_state(order_.back(), held, cache);
    while (num_pages_ > pages_max_) drop(order_.begin(), cache);
}

void HeldPrefixes::hold_state(Prefix& prefix, std::span<const PageId> path, PrefixCache& cache) {
    if (states_max_ == 0) return;
    const std::optional<PrefixCache::Held> node = cache.hold_state(path);
    if (!node) return;
    states_.push_back({prefix.conversation, *node});
    prefix.state = std::prev(states_.end());
    if (std::ssize(states_) > states_max_)
        drop_state(*places_.at(states_.front().conversation), cache);
}

void HeldPrefixes::drop_state(Prefix& prefix, PrefixCache& cache) {
    if (!prefix.state) return;
    cache.unhold_state((*prefix.state)->node);
    states_.erase(*prefix.state);
    prefix.state.reset();
}

void HeldPrefixes::end(messages::ConversationId conversation, PrefixCache& cache) {
    const auto place = places_.find(conversation);
    if (place != places_.end()) drop(place->second, cache);
}

void HeldPrefixes::clear(PrefixCache& cache) {
    while (!order_.empty()) drop(order_.begin(), cache);
}

}  // namespace pitstop::scheduler
