// Which pages hold the KV of which token prefixes, so that requests share them (P9).
//
// A prefix belongs to the version of an adapter that computed it, or to the model alone. The first
// node records which, and all nodes below it belong to the same one.
//
// A radix tree over page-sized blocks of tokens: a node is one page, and its path from the root is
// the prefix that the page continues. A node is tagged with the weight epochs that computed it, and
// the tag is part of its identity: the same tokens computed under new weights are another node. KV
// depends on all KV before it, so the epochs of a prefix are the union of the tags on its path. A
// block computed on top of an older prefix can be found only below that prefix.
//
// A running request holds a reference on every node of its prefix. Unreferenced nodes stay until
// their page is needed: the least recently used leaf is evicted first, and held ones
// (held_prefixes.h) after all others.
//
// If requests have recurrent state, pages alone are not enough to continue from: a node may have a
// checkpoint, the state after its last token (state_places.h), and a prefix is usable up to one.
//
// A node is inserted when the step that computes it is planned. Workers run steps in order, so a
// later step may read it. A step cannot read what it computes itself: match() reports that, and the
// scheduler lets the request wait for the next step.
//
// Owns:    the pages of its nodes, from insert() until evict() gives them to the allocator, and the
//          places for checkpoints.
// Thread:  the loop thread only.
// Bounded: at most a node per page.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/page_allocator.h"
#include "scheduler_proc/state_places.h"

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

class PrefixCache {
  public:
    PrefixCache() = default;  // a cache without pages
    // `num_places`: for checkpoints; absent: requests have no state, and pages alone are a prefix.
    PrefixCache(
        std::int64_t num_pages,
        std::int64_t page_size,
        std::optional<std::int64_t> num_places = std::nullopt
    );

    struct Match {
        std::vector<PageId> pages{};  // whole pages, from the first token on
        EpochRange epochs{};          // the epochs that computed them; empty without pages
        // a step in flight computes the next page, or will save a later state
        bool is_pending = false;
        std::optional<messages::AdapterId> adapter{};  // as asked for
        // With state: the longest prefix that pages alone would have given. Its pages after `pages`
        // have no checkpoint, and are computed again.
        std::vector<PageId> found{};
    };
    // Finds the longest prefix of `tokens` in whole pages that only `accepted` epochs computed, by
    // a step before `step`; among equally long ones, the newer. With state, the prefix with the
    // last checkpoint, up to that. Adds no reference.
    [[nodiscard]] Match match(
        std::span<const TokenId> tokens,
        const EpochRange& accepted,
        StepId step,
        std::optional<messages::AdapterId> adapter = std::nullopt
    ) const;

    // lock() adds references on a path from the root, to keep it; unlock() releases them.
    void lock(std::span<const PageId> path);
    void unlock(std::span<const PageId> path);

    struct NewNode {
        std::optional<PageId> parent{};                // the page before it; nothing for the first
        PageId page{};                                 // allocated; the caller's until insert()
        std::span<const TokenId> tokens{};             // [page_size]
        EpochRange epochs{};                           // the epochs that computed it
        StepId step{};                                 // the last step that writes to it
        std::optional<messages::AdapterId> adapter{};  // that computed it
    };
    // Returns the node with this parent, these tokens and these epochs, if it exists.
    [[nodiscard]] std::optional<PageId> find(const NewNode& node) const;
    // Takes over the page; the caller holds a reference on it.
    // REQUIRES: find() is empty; the caller holds a reference on the parent.
    void insert(const NewNode& node);

    // Hides the node and its descendants from searches: the content of its page is worthless.
    // Existing references stay valid. REQUIRES: holds(page).
    void forget(PageId page);
    [[nodiscard]] bool is_forgotten(PageId page) const { return !at(page).is_listed; }

    // Holds keep unreferenced nodes until no others are left to evict. An evicted node has none,
    // and its page may be another node's by then: a hold names the node, not the page.
    struct Held {
        PageId page{};
        std::uint64_t serial = 0;
    };
    [[nodiscard]] std::vector<Held> hold(std::span<const PageId> path);
    void unhold(std::span<const Held> path);
    // Whether the node is still the one that was held.
    [[nodiscard]] bool is_held(const Held& held) const {
        return holds(held.page) && at(held.page).serial == held.serial;
    }
    // The same of the last checkpoint of the path, if it has one: it and later ones of its node are
    // evicted after those that are not held.
    [[nodiscard]] std::optional<Held> hold_state(std::span<const PageId> path);
    void unhold_state(const Held& node);

    // Gives up to `num` unreferenced pages to the allocator. Returns how many.
    std::int64_t evict(std::int64_t num, PageAllocator& pages);

    // The places for checkpoints; null: requests have no state.
    [[nodiscard]] StatePlaces* places() { return places_ ? &*places_ : nullptr; }
    [[nodiscard]] const StatePlaces* places() const { return places_ ? &*places_ : nullptr; }

    [[nodiscard]] std::int64_t num_nodes() const { return num_nodes_; }
    [[nodiscard]] std::int64_t num_unreferenced() const { return num_unreferenced_; }
    [[nodiscard]] bool holds(PageId page) const { return at(page).is_used; }
    [[nodiscard]] std::int32_t num_refs(PageId page) const { return at(page).num_refs; }
    [[nodiscard]] EpochRange epochs_of(PageId page) const { return at(page).epochs; }

    // Returns what is wrong inside, or nothing. For tests and the simulator: visits every node.
    [[nodiscard]] std::optional<std::string> audit() const;

  private:
    static constexpr std::int32_t kNone = -1;

    // A node has the number of its page.
    struct Node {
        std::int32_t parent = kNone;
        std::int32_t next = kNone;  // the next node of its bucket
        std::int32_t num_refs = 0;
        std::int32_t num_children = 0;
        std::int32_t num_holds = 0;
        std::int32_t num_state_holds = 0;
        EpochRange epochs{};
        StepId step{};
        std::uint64_t hash = 0;
        std::uint64_t last_used = 0;
        std::uint64_t serial = 0;  // new for every node
        std::optional<messages::AdapterId> adapter{};
        bool is_used = false;
        bool is_listed = false;  // is in its bucket, so not forgotten
    };
    [[nodiscard]] Node& at(PageId page) { return nodes_[static_cast<std::size_t>(raw(page))]; }
    [[nodiscard]] const Node& at(PageId page) const {
        return nodes_[static_cast<std::size_t>(raw(page))];
    }
    [[nodiscard]] std::span<const TokenId> tokens_of(PageId page) const;
    // Selects the children to search: those of a node, or the first nodes of an adapter, or
    // of no adapter.
    struct Parent {
        std::int32_t node = kNone;
        std::optional<messages::AdapterId> adapter{};
    };
    [[nodiscard]] std::uint64_t hash_of(const Parent& parent, std::span<const TokenId> block) const;
    // The order of eviction.
    using Rank = std::tuple<bool, std::uint64_t, PageId>;  // is held, last_used, page
    [[nodiscard]] Rank rank_of(PageId page) const {
        return {at(page).num_holds > 0, at(page).last_used, page};
    }
    void change_holds(PageId page, std::int32_t by);
    [[nodiscard]] bool is_evictable(const Node& node) const {
        return node.is_used && node.num_refs == 0 && node.num_children == 0;
    }

    // How far a path is usable: all of it, or with state up to its last checkpoint.
    struct Reach {
        std::size_t num_usable = 0;  // pages
        bool is_pending = false;     // a checkpoint further on is announced, or saved by the step
    };
    // Returns the reach of a path whose last node is `last`; `before` is the reach
    // without that node.
    [[nodiscard]] Reach reach_of(
        const Reach& before, std::size_t num_pages, PageId last, StepId step
    ) const;

    void unlist(PageId page);
    // Finds the acceptable children of `parent` with this `block`, the newest first.
    void find_children(
        const Parent& parent,
        std::span<const TokenId> block,
        const EpochRange& accepted,
        std::vector<PageId>& found
    ) const;

    std::int64_t page_size_ = 1;
    std::vector<Node> nodes_{};            // [num_pages]
    std::vector<TokenId> tokens_{};        // [num_pages * page_size]
    std::vector<std::int32_t> buckets_{};  // by hash; looked up, never iterated
    std::set<Rank> evictable_{};
    std::optional<StatePlaces> places_{};  // absent: requests have no state
    std::uint64_t tick_ = 0;
    std::uint64_t last_serial_ = 0;
    std::int64_t num_nodes_ = 0;
    std::int64_t num_unreferenced_ = 0;
};

}  // namespace pitstop::scheduler
