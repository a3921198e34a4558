// The resources that requests need to run: KV pages, the prefix cache through which requests share
// pages, slots, and with recurrent state the places for checkpoints.
//
// A request has a lease from its start until it gives the lease back. Pages and slots that a step
// in flight may still use become free when that step is done. So every page is free, a node of the
// prefix cache, or private to one lease. Every slot is free or in one lease.
//
// Owns:    every page and slot of the replica.
// Thread:  the loop thread only.
// Bounded: by the pages and slots given at construction.
#pragma once

#include "base/ids.h"
#include "messages/status.h"
#include "scheduler_proc/conversations.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/held_prefixes.h"
#include "scheduler_proc/page_allocator.h"
#include "scheduler_proc/prefix_cache.h"

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// The places for checkpoints that a request with recurrent state uses.
struct LeaseState {
    // A reserved place. The reservation ends when the row that saves the state is done and its last
    // page is a node.
    struct Saving {
        CheckpointId place{};
        std::int64_t position = 0;  // the state after tokens [0, position)
        StepId step{};
    };
    // The end of a cached prefix without a checkpoint: other requests wait for a checkpoint there.
    struct Branch {
        std::int64_t position = 0;
        PageId page{};
        std::uint64_t announcement = 0;
    };
    std::optional<CheckpointId> from{};  // the checkpoint that its first row restores
    std::vector<Saving> savings{};
    std::optional<Branch> branch{};
    std::optional<PageId> trail{};  // the node with the latest checkpoint that its decode saved
};

// The part of the pool that a running request has.
struct Lease {
    std::optional<SlotId> slot{};
    std::vector<PageId> pages{};            // for the planned positions; there may be one page more
    std::vector<EpochRange> page_epochs{};  // [pages], the epochs that computed each page so far
    std::size_t num_shared = 0;  // number of first pages that are nodes of the prefix cache
    EpochRange kv{};             // the epochs of all its KV
    StepId last_step{};          // the last step that may use the lease
    std::optional<messages::AdapterId> adapter{};  // the version that computed its first KV
    Epoch kv_min_adapter{};   // with an adapter: the oldest version that computed any of its KV
    bool is_private = false;  // its KV mixes versions of an adapter: no further page is shared
    LeaseState state{};
};

class KvPool {
  public:
    struct Size {
        std::int64_t num_pages = 0;
        std::int64_t page_size = 1;  // tokens
        std::int64_t num_slots = 0;
        // Places for checkpoints; absent: requests have no recurrent state.
        std::optional<std::int64_t> num_places{};
        // A decode saves its state after this many tokens, rounded up to whole pages. A copy costs
        // about as much as one token's update, so 16 tokens cost 6 %.
        std::int64_t trail_tokens = 16;
        // A long prompt saves its state after this many tokens, while places are free.
        std::int64_t spare_tokens = 1024;
        // Limit of the pages that conversations hold between their turns. The same share of the
        // places for checkpoints may be held.
        std::int64_t held_pages_max = 0;
    };

    KvPool() = default;  // an empty pool
    explicit KvPool(const Size& size);

    // ---- leases ----
    // Starts a lease with a slot and the pages of `match`. Returns nothing unless `num_tokens`
    // positions fit and leave `num_claimed` pages for other requests. REQUIRES: has_slot().
    [[nodiscard]] std::optional<Lease> start(
        PrefixCache::Match match, std::int64_t num_tokens, std::int64_t num_claimed
    );
    // Adds pages for the first `num_tokens` positions: free pages first, then unused cached ones.
    // Returns the number of missing pages; if that is above 0, the lease is unchanged.
    [[nodiscard]] std::int64_t grow(Lease& lease, std::int64_t num_tokens);
    // Frees the pages that the first `num_tokens` positions do not use, and the places reserved for
    // states after those positions. REQUIRES: no step in flight uses what is freed.
    void shrink(Lease& lease, std::int64_t num_tokens);
    // Marks positions [begin, end) as computed under `epoch`.
    void stamp(Lease& lease, std::int64_t begin, std::int64_t end, Epoch epoch) const;
    // Puts the full pages of `tokens`, the request's first ones, into the prefix cache; `step` is
    // the last step that writes to them. `duplicates` applies to a page that another lease already
    // inserted. kKeep keeps the own page, for pages that the plan being made writes to. kReplace
    // switches to the other lease's page, so that later pages can follow. kSwap switches too, and
    // returns the own pages: the row of the plan being made still writes to them.
    enum class Duplicates { kKeep, kReplace, kSwap };
    struct OwnPage {
        std::size_t index = 0;  // within the request
        PageId page{};
    };
    std::vector<OwnPage> share(
        Lease& lease, std::span<const TokenId> tokens, StepId step, Duplicates duplicates
    );
    // No further page or state of the lease is put into the prefix cache.
    void stop_sharing(Lease& lease);
    // Removes these pages from the prefix cache, because their content is worthless.
    void forget(std::span<const PageId> pages);
    [[nodiscard]] bool has_forgotten(std::span<const PageId> pages) const;
    // Takes the lease back, at once or when the last step that may use it is done. `holder`: the
    // lease was a turn's, and the conversation holds its shared pages until the next turn ends.
    void give_back(Lease lease, std::optional<PrefixHolder> holder = std::nullopt);

    // ---- conversations ----
    [[nodiscard]] Conversations& conversations() { return conversations_; }
    [[nodiscard]] const Conversations& conversations() const { return conversations_; }
    void end_conversation(messages::ConversationId conversation) {
        conversations_.end(conversation);
        held_.end(conversation, cache_);
    }
    // Returns whether the conversation may start a turn that arrived at `arrived_at`. Also ends the
    // holds of overdue conversations.
    [[nodiscard]] bool may_start_turn(messages::ConversationId conversation, TimePoint arrived_at);
    // The weights of `serving` serve from now on.
    void begin_epoch(Epoch serving) { held_.begin_epoch(serving, cache_); }
    // New requests get these versions of adapters.
    void serve_adapters(const std::set<messages::AdapterId>& serving) {
        held_.serve_adapters(serving, cache_);
    }

    // ---- recurrent state (kv_pool_state.cpp) ----
    [[nodiscard]] bool has_state() const { return size_.num_places.has_value(); }
    // The first row of the lease, in `step`, restores the state at the end of its cached pages.
    void restore(Lease& lease, StepId step);
    // Returns where a prefill row for [begin, end) must end: at `end`, or earlier, because a row
    // saves only one state. The request has `num_known` tokens.
    [[nodiscard]] std::int64_t end_of_row(
        const Lease& lease, std::int64_t begin, std::int64_t end, std::int64_t num_known
    ) const;
    struct Save {
        CheckpointId place{};
        std::int64_t position = 0;
    };
    // Returns the state that this prefill row saves: at a branch, before the end of the known
    // tokens, or at fixed distances. Nothing if no place is free. REQUIRES: full pages are shared.
    [[nodiscard]] std::optional<Save> save_prefill(
        Lease& lease, std::int64_t begin, std::int64_t end, std::int64_t num_known, StepId step
    );
    // Returns the state that a decode's row up to `end` saves; keep_saved() gives it to a node.
    // Tokens from `certain` on are drafts. If a draft is wrong, no state after it is kept.
    [[nodiscard]] std::optional<Save> save_decode(
        Lease& lease, std::int64_t certain, std::int64_t end, StepId step
    );
    // Gives each node the state that `step` saved for it. `step` is done; the pages of [0, end) are
    // shared.
    void keep_saved(Lease& lease, StepId step, std::int64_t end);

    // Step `step` is done: from now on, leases whose last step it was are taken back at once.
    void end_step(StepId step);
    // Takes back the leases that waited for a step that is done.
    void release_ended();

    // Removes unused pages from the prefix cache. Returns how many pages became free.
    std::int64_t clear_cache() {
        held_.clear(cache_);
        return cache_.evict(cache_.num_nodes(), pages_);
    }

    [[nodiscard]] bool has_slot() const { return !free_slots_.empty(); }
    [[nodiscard]] std::int64_t num_slots() const { return size_.num_slots; }
    [[nodiscard]] std::int64_t num_pages() const { return size_.num_pages; }
    [[nodiscard]] std::int64_t num_free() const { return pages_.num_free(); }
    // Returns how many pages at least become free or evictable when the steps in flight are done.
    [[nodiscard]] std::int64_t num_coming() const;
    [[nodiscard]] std::int64_t pages_for(std::int64_t num_tokens) const {
        return (num_tokens + size_.page_size - 1) / size_.page_size;
    }
    [[nodiscard]] std::int64_t page_size() const { return size_.page_size; }
    [[nodiscard]] const PrefixCache& cache() const { return cache_; }

    // Fills in the numbers of pages, slots and checkpoints.
    void report_to(messages::ReplicaStatus& status) const;

    // Returns what is wrong, or nothing, given that `held` are all leases in use and that `serving`
    // serves. For tests and the simulator: visits every page.
    [[nodiscard]] std::optional<std::string> audit(
        std::span<const Lease* const> held, const HeldPrefixes::Serving& serving = {}
    ) const;

  private:
    void release(const Lease& lease);
    void end_branch(Lease& lease);
    void end_state(Lease& lease);
    [[nodiscard]] std::optional<std::string> audit_places(std::span<const Lease* const> held) const;
    // `num_tokens` rounded up to whole pages.
    [[nodiscard]] std::int64_t whole_pages(std::int64_t num_tokens) const {
        return pages_for(num_tokens) * size_.page_size;
    }

    Size size_{};
    PageAllocator pages_{};
    PrefixCache cache_{};
    HeldPrefixes held_{};
    Conversations conversations_{};
    std::vector<SlotId> free_slots_{};  // a stack
    StepId last_done_{};                // steps up to this one are done
    std::vector<Lease> waiting_{};  // leases waiting for steps in flight, in the order given back
};

}  // namespace pitstop::scheduler
