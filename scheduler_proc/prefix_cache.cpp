#include "scheduler_proc/prefix_cache.h"

#include "base/check.h"
#include "base/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <ranges>

namespace pitstop::scheduler {
namespace {

// If several versions of a prefix are acceptable, the search looks for the longest prefix. It
// visits at most this many nodes per block of the prompt, so that a tree of many versions cannot
// delay a turn. The first path to a leaf visits one node per block.
constexpr std::size_t kVisitsPerBlock = 4;

}  // namespace

PrefixCache::PrefixCache(
    std::int64_t num_pages, std::int64_t page_size, std::optional<std::int64_t> num_places
)
    : page_size_(page_size) {
    CHECK(num_pages >= 0 && page_size >= 1);
    nodes_.resize(static_cast<std::size_t>(num_pages));
    tokens_.resize(static_cast<std::size_t>(num_pages * page_size));
    buckets_.assign(std::bit_ceil(static_cast<std::size_t>(num_pages) + 1), kNone);
    if (num_places) places_.emplace(*num_places, num_pages);
}

std::span<const TokenId> PrefixCache::tokens_of(PageId page) const {
    const auto size = static_cast<std::size_t>(page_size_);
    return std::span(tokens_).subspan(static_cast<std::size_t>(raw(page)) * size, size);
}

std::uint64_t PrefixCache::hash_of(const Parent& parent, std::span<const TokenId> block) const {
    std::uint64_t hash = mix64(static_cast<std::uint64_t>(parent.node + 1) + kDigestStep);
    if (parent.adapter)
        hash = mix64(hash + static_cast<std::uint64_t>(*parent.adapter) + kDigestStep);
    for (const TokenId token : block) {
        hash = mix64(hash + static_cast<std::uint64_t>(raw(token)) + kDigestStep);
    }
    return hash;
}

void PrefixCache::find_children(
    const Parent& parent,
    std::span<const TokenId> block,
    const EpochRange& accepted,
    std::vector<PageId>& found
) const {
    found.clear();
    const std::uint64_t hash = hash_of(parent, block);
    for (std::int32_t i = buckets_[hash & (buckets_.size() - 1)]; i != kNone;
         i = nodes_[static_cast<std::size_t>(i)].next) {
        const auto page = static_cast<PageId>(i);
        const Node& node = at(page);
        if (node.hash != hash || node.parent != parent.node || node.adapter != parent.adapter ||
            !accepted.contains(node.epochs))
            continue;
        if (!std::ranges::equal(tokens_of(page), block)) continue;
        found.push_back(page);
    }
    // Siblings with the same tokens differ in their epochs, so this order is total.
    std::ranges::sort(found, [&](PageId a, PageId b) {
        const EpochRange& x = at(a).epochs;
        const EpochRange& y = at(b).epochs;
        return std::pair(x.max, x.min) > std::pair(y.max, y.min);
    });
}

PrefixCache::Reach PrefixCache::reach_of(
    const Reach& before, std::size_t num_pages, PageId last, StepId step
) const {
    if (!places_) return {.num_usable = num_pages};
    const bool is_saved_now = places_->of(last) && places_->is_saved_by(last, step);
    if (places_->of(last) && !is_saved_now) return {.num_usable = num_pages};
    return {
        .num_usable = before.num_usable,
        .is_pending = before.is_pending || is_saved_now || places_->is_announced(last)};
}

PrefixCache::Match PrefixCache::match(
    std::span<const TokenId> tokens,
    const EpochRange& accepted,
    StepId step,
    std::optional<messages::AdapterId> adapter
) const {
    const auto size = static_cast<std::size_t>(page_size_);
    const std::size_t num_blocks = tokens.size() / size;
    Match best{.adapter = adapter};
    if (buckets_.empty() || num_blocks == 0) return best;

    // Searches depth first, newest children first. A request that accepts a single epoch has one
    // path to follow.
    struct Place {
        PageId page{};
        std::size_t depth = 0;  // blocks before it
    };
    std::vector<Place> open;
    std::vector<PageId> path;
    std::vector<PageId> children;
    std::vector<Reach> reaches(1);  // [i]: the reach of the path's first i pages
    std::size_t num_usable = 0;     // pages of the best path so far
    std::size_t visits_left = kVisitsPerBlock * num_blocks;
    for (bool is_root = true; is_root || (!open.empty() && visits_left > 0); is_root = false) {
        if (!is_root) {
            const Place place = open.back();
            open.pop_back();
            --visits_left;
            path.resize(place.depth);
            path.push_back(place.page);
            reaches.resize(path.size());
            reaches.push_back(reach_of(reaches.back(), path.size(), place.page, step));
        }
        bool is_pending = false;
        std::size_t num_next = 0;
        if (path.size() < num_blocks) {
            const Parent parent{path.empty() ? kNone : raw(path.back()), adapter};
            find_children(parent, tokens.subspan(path.size() * size, size), accepted, children);
            for (auto child = children.rbegin(); child != children.rend(); ++child) {
                if (at(*child).step >= step) {
                    is_pending = true;
                    continue;
                }
                open.push_back({*child, path.size()});
                ++num_next;
            }
        }
        if (num_next > 0) continue;
        const Reach& reach = reaches.back();
        const auto rank = std::pair(reach.num_usable, path.size());
        if (!is_root && rank <= std::pair(num_usable, best.pages.size())) continue;
        num_usable = reach.num_usable;
        best.pages = path;
        best.is_pending = is_pending || reach.is_pending;
    }
    if (places_) {
        best.found = best.pages;
        best.pages.resize(num_usable);
    }
    for (const PageId page : best.pages) best.epochs.add(at(page).epochs);
    return best;
}

void PrefixCache::lock(std::span<const PageId> path) {
    for (const PageId page : path) {
        Node& node = at(page);
        CHECK(node.is_used);
        if (node.num_refs == 0) {
            --num_unreferenced_;
            if (node.num_children == 0) evictable_.erase(rank_of(page));
        }
        ++node.num_refs;
    }
}

void PrefixCache::unlock(std::span<const PageId> path) {
    ++tick_;
    for (const PageId page : path) {
        Node& node = at(page);
        CHECK(node.is_used && node.num_refs > 0);
        --node.num_refs;
        node.last_used = tick_;
        if (node.num_refs > 0) continue;
        ++num_unreferenced_;
        if (node.num_children == 0) evictable_.insert(rank_of(page));
    }
}

std::optional<PageId> PrefixCache::find(const NewNode& node) const {
    const Parent parent{node.parent ? raw(*node.parent) : kNone, node.adapter};
    std::vector<PageId> found;
    find_children(parent, node.tokens, node.epochs, found);
    for (const PageId page : found) {
        if (at(page).epochs == node.epochs) return page;
    }
    return std::nullopt;
}

void PrefixCache::insert(const NewNode& node) {
    CHECK(static_cast<std::int64_t>(node.tokens.size()) == page_size_);
    CHECK(!node.epochs.is_empty());
    Node& made = at(node.page);
    CHECK(!made.is_used);
    made = Node{};
    made.is_used = true;
    made.num_refs = 1;
    made.epochs = node.epochs;
    made.step = node.step;
    made.serial = ++last_serial_;
    made.adapter = node.adapter;
    if (node.parent) {
        CHECK(at(*node.parent).is_used && at(*node.parent).num_refs > 0);
        made.parent = raw(*node.parent);
        ++at(*node.parent).num_children;
    }
    made.hash = hash_of({made.parent, made.adapter}, node.tokens);
    const auto first = static_cast<std::size_t>(raw(node.page)) * node.tokens.size();
    std::ranges::copy(node.tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(first));
    std::int32_t& bucket = buckets_[made.hash & (buckets_.size() - 1)];
    made.next = bucket;
    bucket = raw(node.page);
    made.is_listed = true;
    ++num_nodes_;
}

void PrefixCache::unlist(PageId page) {
    Node& node = at(page);
    if (!node.is_listed) return;
    std::int32_t* link = &buckets_[node.hash & (buckets_.size() - 1)];
    while (*link != raw(page)) link = &nodes_[static_cast<std::size_t>(*link)].next;
    *link = node.next;
    node.is_listed = false;
}

// Only searches that pass this node find its children, so unlisting it hides them, too.
void PrefixCache::forget(PageId page) {
    CHECK(holds(page));
    unlist(page);
    if (places_) places_->drop(page);
}

void PrefixCache::change_holds(PageId page, std::int32_t by) {
    Node& node = at(page);
    const bool is_listed = is_evictable(node);
    if (is_listed) evictable_.erase(rank_of(page));
    node.num_holds += by;
    num_holds_ += by;
    if (is_listed) evictable_.insert(rank_of(page));
}

std::vector<PrefixCache::Held> PrefixCache::hold(std::span<const PageId> path) {
    std::vector<Held> held;
    for (const PageId page : path) {
        CHECK(holds(page));
        change_holds(page, 1);
        held.push_back({page, at(page).serial});
    }
    return held;
}

void PrefixCache::unhold(std::span<const Held> path) {
    for (const Held& one : path) {
        if (is_held(one)) change_holds(one.page, -1);
    }
}

std::optional<PrefixCache::Held> PrefixCache::hold_state(std::span<const PageId> path) {
    if (!places_) return std::nullopt;
    for (const PageId page : path | std::views::reverse) {
        if (!places_->of(page)) continue;
        if (++at(page).num_state_holds == 1) places_->set_held(page, true);
        return Held{page, at(page).serial};
    }
    return std::nullopt;
}

void PrefixCache::unhold_state(const Held& node) {
    if (!is_held(node)) return;
    if (--at(node.page).num_state_holds == 0) places_->set_held(node.page, false);
}

std::int64_t PrefixCache::evict(std::int64_t num, PageAllocator& pages) {
    std::int64_t num_evicted = 0;
    while (num_evicted < num && !evictable_.empty()) {
        const PageId page = std::get<PageId>(*evictable_.begin());
        evictable_.erase(evictable_.begin());
        Node& node = at(page);
        CHECK(is_evictable(node));
        unlist(page);
        if (node.parent != kNone) {
            const auto parent_page = static_cast<PageId>(node.parent);
            Node& parent = at(parent_page);
            --parent.num_children;
            if (is_evictable(parent)) evictable_.insert(rank_of(parent_page));
        }
        num_holds_ -= node.num_holds;
        if (node.num_state_holds > 0) places_->set_held(page, false);
        if (places_) places_->drop(page);
        node = Node{};
        --num_nodes_;
        --num_unreferenced_;
        ++num_evicted;
        pages.release({&page, 1});
    }
    return num_evicted;
}

std::optional<std::string> PrefixCache::audit() const {
    std::int64_t num_used = 0;
    std::int64_t num_unreferenced = 0;
    std::size_t num_evictable = 0;
    std::vector<std::int32_t> num_children(nodes_.size(), 0);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const Node& node = nodes_[i];
        if (!node.is_used) continue;
        ++num_used;
        if (node.num_refs == 0) ++num_unreferenced;
        if (node.num_refs < 0) return fmt::format("page {} has {} references", i, node.num_refs);
        if (is_evictable(node)) {
            ++num_evictable;
            if (!evictable_.contains(rank_of(static_cast<PageId>(i))))
                return fmt::format("page {} can be evicted, but is not listed", i);
        }
        if (node.parent == kNone) continue;
        const auto parent = static_cast<std::size_t>(node.parent);
        if (!nodes_[parent].is_used) return fmt::format("page {} has a parent that is no node", i);
        if (nodes_[parent].num_refs < node.num_refs)
            return fmt::format("page {} has more references than its parent", i);
        ++num_children[parent];
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].is_used && nodes_[i].num_children != num_children[i])
            return fmt::format(
                "page {}: {} children, not {}", i, num_children[i], nodes_[i].num_children
            );
    }
    if (num_used != num_nodes_) return fmt::format("{} nodes, not {}", num_used, num_nodes_);
    if (num_unreferenced != num_unreferenced_)
        return fmt::format("{} unreferenced nodes, not {}", num_unreferenced, num_unreferenced_);
    if (num_evictable != evictable_.size())
        return fmt::format(
            "{} nodes can be evicted, {} are listed", num_evictable, evictable_.size()
        );
    return std::nullopt;
}

}  // namespace pitstop::scheduler
