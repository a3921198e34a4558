// The pages that hold the KV of token prefixes, so that requests share them (P9).
//
// A prefix belongs to the adapter version that computed it, or to the model alone. The first node
// of a path records the adapter version, and all nodes below have the same one.
//
// A radix tree over page-sized blocks of tokens: a node is one page, and the path from the root to
// the node is the prefix that the page continues. A node is tagged with the weight epochs that
// computed it. The tag is part of its identity: new weights make another node for the same tokens.
// KV depends on all KV before it, so the epochs of a prefix are the union of the tags on its path.
// A block computed on top of an older prefix can be found only below that prefix.
//
// A running request holds a reference on every node of its prefix. Unreferenced nodes stay until
// their page is needed: the least recently used leaf is evicted first, and nodes on hold
// (held_prefixes.h) after all others.
//
// Requests with recurrent state need more than pages to continue. A node may have a checkpoint, the
// state after its last token (state_places.h); a prefix is usable up to a checkpoint.
//
// A node is inserted when the step that computes it is planned. Workers run steps in order, so a
// later step may read it. A step cannot read pages that it computes itself: match() reports such
// pages, and the scheduler lets the request wait for the next step.
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
    // `num_places`: for checkpoints; absent: requests have no state, and pages alone suffice.
    PrefixCache(
        std::int64_t num_pages,
        std::int64_t page_size,
        std::optional<std::int64_t> num_places = std::nullopt
    );

    struct Match {
        std::vector<PageId> pages{};  // whole pages, from the first token on
        EpochRange epochs{};          // the epochs that computed the pages; empty without pages
        // a step in flight computes the next page, or will save a later state
        bool is_pending = false;
        std::optional<messages::AdapterId> adapter{};  // the adapter that the search was for
        // With state: the longest prefix of pages alone. Its pages after `pages` have no
        // checkpoint, so they are computed again.
        std::vector<PageId> found{};
    };
    // Finds the longest prefix of `tokens` in whole pages that only `accepted` epochs computed, by
    // a step before `step`; the newest among equally long ones. With state, finds the prefix with
    // the latest checkpoint, and ends it at that checkpoint. Adds no reference.
    [[nodiscard]] Match match(
        std::span<const TokenId> tokens,
        const EpochRange& accepted,
        StepId step,
        std::optional<messages::AdapterId> adapter = std::nullopt
    ) const;

    // lock() adds a reference to each node of a path from the root; unlock() removes them.
    void lock(std::span<const PageId> path);
    void unlock(std::span<const PageId> path);

    struct NewNode {
        std::optional<PageId> parent{};                // the previous page; nothing for the first
        PageId page{};                                 // allocated; the caller's until insert()
        std::span<const TokenId> tokens{};             // [page_size]
        EpochRange epochs{};                           // the epochs that computed it
        StepId step{};                                 // the last step that writes to it
        std::optional<messages::AdapterId> adapter{};  // the adapter that computed it
    };
    // Returns the node with this parent, these tokens and these epochs, if it exists.
    [[nodiscard]] std::optional<PageId> find(const NewNode& node) const;
    // Takes over the page; the caller then holds a reference on it. REQUIRES: find(node) returns
    // nothing; the caller holds a reference on the parent.
    void insert(const NewNode& node);

    // Hides the node and its descendants from searches, because its page's content is worthless.
    // Existing references stay valid. REQUIRES: holds(page).
    void forget(PageId page);
    [[nodiscard]] bool is_forgotten(PageId page) const { return !at(page).is_listed; }

    // Nodes on hold are evicted only when no others are left. After an eviction the page may belong
    // to another node; so a hold names the node by its serial, not only by its page.
    struct Held {
        PageId page{};
        std::uint64_t serial = 0;
    };
    [[nodiscard]] std::vector<Held> hold(std::span<const PageId> path);
    void unhold(std::span<const Held> path);
    // Returns whether the page still belongs to the node on hold.
    [[nodiscard]] bool is_held(const Held& held) const {
        return holds(held.page) && at(held.page).serial == held.serial;
    }
    // Puts the last checkpoint of the path on hold, if the path has one. This and later checkpoints
    // of its node are evicted after those that are not on hold.
    [[nodiscard]] std::optional<Held> hold_state(std::span<const PageId> path);
    void unhold_state(const Held& node);

    // Gives up to `num` unreferenced pages to the allocator. Returns how many it gave.
    std::int64_t evict(std::int64_t num, PageAllocator& pages);

    // The places for checkpoints; null: requests have no state.
    [[nodiscard]] StatePlaces* places() { return places_ ? &*places_ : nullptr; }
    [[nodiscard]] const StatePlaces* places() const { return places_ ? &*places_ : nullptr; }

    [[nodiscard]] std::int64_t num_nodes() const { return num_nodes_; }
    [[nodiscard]] std::int64_t num_unreferenced() const { return num_unreferenced_; }
    [[nodiscard]] std::int64_t num_holds() const { return num_holds_; }  // on all nodes together
    [[nodiscard]] bool holds(PageId page) const { return at(page).is_used; }
    [[nodiscard]] std::int32_t num_refs(PageId page) const { return at(page).num_refs; }
    [[nodiscard]] EpochRange epochs_of(PageId page) const { return at(page).epochs; }
    [[nodiscard]] std::optional<messages::AdapterId> adapter_of(PageId page) const {
        return at(page).adapter;
    }

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
        bool is_listed = false;  // in its bucket; false: forgotten
    };
    [[nodiscard]] Node& at(PageId page) { return nodes_[static_cast<std::size_t>(raw(page))]; }
    [[nodiscard]] const Node& at(PageId page) const {
        return nodes_[static_cast<std::size_t>(raw(page))];
    }
    [[nodiscard]] std::span<const TokenId> tokens_of(PageId page) const;
    // Selects the children to search: those of a node, or without a node, the first nodes of an
    // adapter or of no adapter.
    struct Parent {
        std::int32_t node = kNone;
        std::optional<messages::AdapterId> adapter{};
    };
    [[nodiscard]] std::uint64_t hash_of(const Parent& parent, std::span<const TokenId> block) const;
    // The key of the order of eviction.
    using Rank = std::tuple<bool, std::uint64_t, PageId>;  // is held, last_used, page
    [[nodiscard]] Rank rank_of(PageId page) const {
        return {at(page).num_holds > 0, at(page).last_used, page};
    }
    void change_holds(PageId page, std::int32_t by);
    [[nodiscard]] bool is_evictable(const Node& node) const {
        return node.is_used && node.num_refs == 0 && node.num_children == 0;
    }

    // The usable part of a path: all of it, or with state, up to its last checkpoint.
    struct Reach {
        std::size_t num_usable = 0;  // pages
        bool is_pending = false;     // a later checkpoint is announced, or this step saves it
    };
    // Returns the reach of a path of `num_pages` pages that ends with `last`; `before` is the reach
    // of the path without `last`.
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
    std::int64_t num_holds_ = 0;
};

}  // namespace pitstop::scheduler
