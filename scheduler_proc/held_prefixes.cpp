#include "scheduler_proc/held_prefixes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace pitstop::scheduler {
namespace {

// Without a serving epoch there was no update yet, and all KV is of one version.
EpochRange accepted_by(const PrefixHolder& holder, std::optional<Epoch> serving) {
    constexpr Epoch kLast{std::numeric_limits<std::int64_t>::max()};
    if (!serving || !holder.lag_max) return {Epoch{}, kLast};
    return {Epoch{raw(*serving) - std::min(*holder.lag_max, raw(*serving))}, *serving};
}

}  // namespace

void HeldPrefixes::drop(Order::iterator one, PrefixCache& cache) {
    drop_state(*one, cache);
    cache.unhold(one->nodes);
    num_pages_ -= std::ssize(one->nodes);
    places_.erase(one->holder.conversation);
    order_.erase(one);
}

void HeldPrefixes::hold(
    const PrefixHolder& holder, std::span<const PageId> path, PrefixCache& cache
) {
    const auto num = std::min<std::int64_t>(std::ssize(path), pages_max_);
    if (num == 0) return;
    const EpochRange accepted = accepted_by(holder, serving_);
    const auto is_accepted = [&](PageId page) { return accepted.contains(cache.epochs_of(page)); };
    if (!std::ranges::all_of(path, is_accepted)) return;
    const std::optional<messages::AdapterId> adapter = cache.adapter_of(path.front());
    if (adapter && !adapters_.contains(*adapter)) return;
    end(holder.conversation, cache);
    const auto held = path.first(static_cast<std::size_t>(num));
    order_.push_back({.holder = holder, .nodes = cache.hold(held)});
    places_[holder.conversation] = std::prev(order_.end());
    num_pages_ += num;
    hold_state(order_.back(), held, cache);
    while (num_pages_ > pages_max_) drop(order_.begin(), cache);
}

void HeldPrefixes::hold_state(Prefix& prefix, std::span<const PageId> path, PrefixCache& cache) {
    if (states_max_ == 0) return;
    const std::optional<PrefixCache::Held> node = cache.hold_state(path);
    if (!node) return;
    states_.push_back({prefix.holder.conversation, *node});
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

void HeldPrefixes::begin_epoch(Epoch serving, PrefixCache& cache) {
    serving_ = serving;
    for (auto one = order_.begin(); one != order_.end();) {
        const auto next = std::next(one);
        const EpochRange accepted = accepted_by(one->holder, serving);
        const bool is_refused = std::ranges::any_of(one->nodes, [&](const PrefixCache::Held& node) {
            return cache.is_held(node) && !accepted.contains(cache.epochs_of(node.page));
        });
        if (is_refused) drop(one, cache);
        one = next;
    }
}

void HeldPrefixes::end(messages::ConversationId conversation, PrefixCache& cache) {
    const auto place = places_.find(conversation);
    if (place != places_.end()) drop(place->second, cache);
}

// All pages of a path belong to the same version, and the first is evicted last.
bool HeldPrefixes::is_served(const Prefix& prefix, const PrefixCache& cache) const {
    const PrefixCache::Held& first = prefix.nodes.front();
    if (!cache.is_held(first)) return true;
    const std::optional<messages::AdapterId> adapter = cache.adapter_of(first.page);
    return !adapter || adapters_.contains(*adapter);
}

void HeldPrefixes::serve_adapters(
    const std::set<messages::AdapterId>& serving, PrefixCache& cache
) {
    if (serving == adapters_) return;
    adapters_ = serving;
    for (auto one = order_.begin(); one != order_.end();) {
        const auto next = std::next(one);
        if (!is_served(*one, cache)) drop(one, cache);
        one = next;
    }
}

std::optional<std::string> HeldPrefixes::audit(const Serving& serving, const PrefixCache& cache)
    const {
    const std::optional<Epoch> epoch = serving.epoch ? serving.epoch : serving_;
    std::int64_t num = 0;
    std::int64_t num_held = 0;
    for (const Prefix& one : order_) {
        num += std::ssize(one.nodes);
        const EpochRange accepted = accepted_by(one.holder, epoch);
        for (const PrefixCache::Held& node : one.nodes) {
            if (!cache.is_held(node)) continue;
            ++num_held;
            const std::optional<messages::AdapterId> adapter = cache.adapter_of(node.page);
            if (adapter && !serving.adapters.contains(*adapter)) {
                return fmt::format(
                    "conversation {} holds page {} of version {} of an adapter, which serves no "
                    "more",
                    raw(one.holder.conversation),
                    raw(node.page),
                    static_cast<std::uint64_t>(*adapter)
                );
            }
            if (accepted.contains(cache.epochs_of(node.page))) continue;
            return fmt::format(
                "conversation {} holds page {} of epoch {}, and epoch {} serves",
                raw(one.holder.conversation),
                raw(node.page),
                raw(cache.epochs_of(node.page).min),
                raw(accepted.max)
            );
        }
    }
    if (num != num_pages_) return fmt::format("{} pages are listed, not {}", num, num_pages_);
    if (num_held != cache.num_holds())
        return fmt::format("{} pages are held, not {}", num_held, cache.num_holds());
    return std::nullopt;
}

void HeldPrefixes::clear(PrefixCache& cache) {
    while (!order_.empty()) drop(order_.begin(), cache);
}

}  // namespace pitstop::scheduler
