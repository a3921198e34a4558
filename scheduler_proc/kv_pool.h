// What requests need to run: KV pages, the prefix cache through which they share pages, and slots;
// with recurrent state, the places for checkpoints too.
//
// A request has a lease from its start until it gives the lease back. Pages and slots that a step
// in flight may still use become free only when that step is done. So every page is free, a node of
// the prefix cache, or private to one lease, and every slot is free or in one lease.
//
// Owns:    every page and slot of the replica.
// Thread:  the loop thread only.
// Bounded: by the pages and slots that it is made with.
#pragma once

#include "base/ids.h"
#include "messages/status.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/held_prefixes.h"
#include "scheduler_proc/page_allocator.h"
#include "scheduler_proc/prefix_cache.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// What a request with recurrent state has of the places for checkpoints.
struct LeaseState {
    // A reserved place, until the row that saves to it is done and its last page is a node.
    struct Saving {
        CheckpointId place{};
        std::int64_t position = 0;  // the state after tokens [0, position)
        StepId step{};
    };
    // The end of the prefix that the cache has without a checkpoint: others wait for one there.
    struct Branch {
        std::int64_t position = 0;
        PageId page{};
        std::uint64_t announcement = 0;
    };
    std::optional<CheckpointId> from{};  // that its first row restores
    std::vector<Saving> savings{};
    std::optional<Branch> branch{};
    std::optional<PageId> trail{};  // the node that got its latest checkpoint of a decode
};

// What a running request has of the pool.
struct Lease {
    std::optional<SlotId> slot{};
    std::vector<PageId> pages{};            // for the planned positions, perhaps one more
    std::vector<EpochRange> page_epochs{};  // [pages], the epochs that computed each so far
    std::size_t num_shared = 0;  // of the first pages, this many are nodes of the prefix cache
    EpochRange kv{};             // the epochs of all its KV
    StepId last_step{};          // the last step that may use the lease
    std::optional<messages::AdapterId> adapter{};  // that computed it, at first
    Epoch kv_min_adapter{};   // with an adapter: the oldest version that computed it
    bool is_private = false;  // versions of an adapter mix in it: no more of it is shared
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
        // A decode saves its state after this many tokens, in whole pages: a copy costs about as
        // much as one token's update, so 16 cost 6 %.
        std::int64_t trail_tokens = 16;
        // A long prompt saves it after this many, while places are free.
        std::int64_t spare_tokens = 1024;
        // Pages that conversations hold between their turns; of places for checkpoints the same
        // share.
        std::int64_t held_pages_max = 0;
    };

    KvPool() = default;  // an empty pool
    explicit KvPool(const Size& size);

    // ---- leases ----
    // Starts a lease with a slot and the pages of `match`, if `num_tokens` positions fit and leave
    // `num_claimed` pages, which other requests need next. REQUIRES: has_slot().
    [[nodiscard]] std::optional<Lease> start(
        PrefixCache::Match match, std::int64_t num_tokens, std::int64_t num_claimed
    );
    // Adds pages for the first `num_tokens` positions: free ones, then unused cached ones. Returns
    // how many pages are missing; if any are, the lease is unchanged.
    [[nodiscard]] std::int64_t grow(Lease& lease, std::int64_t num_tokens);
    // Frees the pages that the first `num_tokens` positions do not use, and the places reserved for
    // states after them. REQUIRES: no step in flight uses these.
    void shrink(Lease& lease, std::int64_t num_tokens);
    // Marks positions [begin, end) as computed under `epoch`.
    void stamp(Lease& lease, std::int64_t begin, std::int64_t end, Epoch epoch) const;
    // Puts the full pages of `tokens`, the request's first ones, into the prefix cache; `step` is
    // the last that writes to them. If another lease already inserted the same page, this one
    // either keeps its own (kKeep, for pages that a plan being made writes to) or switches to the
    // other's (kReplace), so that later pages can follow. With kSwap it switches as well, and its
    // own pages are returned: the row of the plan being made still writes to them.
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
    // The content of these pages is worthless: removes them from the prefix cache.
    void forget(std::span<const PageId> pages);
    [[nodiscard]] bool has_forgotten(std::span<const PageId> pages) const;
    // Takes the lease back, at once or when the last step that may use it is done. `holder`: it was
    // a turn's, whose conversation holds the shared pages until its next turn ends.
    void give_back(Lease lease, std::optional<PrefixHolder> holder = std::nullopt);

    // ---- conversations ----
    void end_conversation(messages::ConversationId conversation) {
        held_.end(conversation, cache_);
    }
    // The weights of `serving` serve from now on.
    void begin_epoch(Epoch serving) { held_.begin_epoch(serving, cache_); }

    // ---- recurrent state (kv_pool_state.cpp) ----
    [[nodiscard]] bool has_state() const { return size_.num_places.has_value(); }
    // The lease begins after cached pages: its first row, of `step`, restores the state there.
    void restore(Lease& lease, StepId step);
    // Returns where a prefill's row from `begin` to `end` ends at the latest: a row saves one
    // state. The request has `num_known` tokens.
    [[nodiscard]] std::int64_t end_of_row(
        const Lease& lease, std::int64_t begin, std::int64_t end, std::int64_t num_known
    ) const;
    struct Save {
        CheckpointId place{};
        std::int64_t position = 0;
    };
    // Returns which state such a row saves: at a branch, before the end of the known tokens, or now
    // and then in between. Nothing if no place is available. REQUIRES: its full pages are shared.
    [[nodiscard]] std::optional<Save> save_prefill(
        Lease& lease, std::int64_t begin, std::int64_t end, std::int64_t num_known, StepId step
    );
    // The same of a decode's row that ends at `end`; its node gets the state in keep_saved(). The
    // tokens from `certain` on are drafts. If one is wrong, no state after it is saved.
    [[nodiscard]] std::optional<Save> save_decode(
        Lease& lease, std::int64_t certain, std::int64_t end, StepId step
    );
    // Step `step` is done, and the pages of tokens [0, end) are shared.
    void keep_saved(Lease& lease, StepId step, std::int64_t end);

    // Step `step` is done: leases that it was the last to use are taken back at once from now on,
    void end_step(StepId step);
    // and this takes back the leases that waited for it.
    void release_ended();

    // Removes unused pages from the prefix cache. Returns how many became free.
    std::int64_t clear_cache() {
        held_.clear(cache_);
        return cache_.evict(cache_.num_nodes(), pages_);
    }

    [[nodiscard]] bool has_slot() const { return !free_slots_.empty(); }
    [[nodiscard]] std::int64_t num_slots() const { return size_.num_slots; }
    [[nodiscard]] std::int64_t num_pages() const { return size_.num_pages; }
    [[nodiscard]] std::int64_t num_free() const { return pages_.num_free(); }
    // Returns how many pages become free or evictable when the steps in flight are done, at least.
    [[nodiscard]] std::int64_t num_coming() const;
    [[nodiscard]] std::int64_t pages_for(std::int64_t num_tokens) const {
        return (num_tokens + size_.page_size - 1) / size_.page_size;
    }
    [[nodiscard]] std::int64_t page_size() const { return size_.page_size; }
    [[nodiscard]] const PrefixCache& cache() const { return cache_; }

    // Fills in the numbers of pages, slots and checkpoints.
    void report_to(messages::ReplicaStatus& status) const;

    // Returns what is wrong if `held` are all leases in use and the weights of `serving` serve, or
    // nothing. For tests and the simulator: visits every page.
    [[nodiscard]] std::optional<std::string> audit(
        std::span<const Lease* const> held, std::optional<Epoch> serving = std::nullopt
    ) const;

  private:
    void release(const Lease& lease);
    void end_branch(Lease& lease);
    void end_state(Lease& lease);
    [[nodiscard]] std::optional<std::string> audit_places(std::span<const Lease* const> held) const;
    // `num_tokens` in whole pages, at least.
    [[nodiscard]] std::int64_t whole_pages(std::int64_t num_tokens) const {
        return pages_for(num_tokens) * size_.page_size;
    }

    Size size_{};
    PageAllocator pages_{};
    PrefixCache cache_{};
    HeldPrefixes held_{};
    std::vector<SlotId> free_slots_{};  // a stack
    StepId last_done_{};                // steps up to this one are done
    std::vector<Lease> waiting_{};  // leases waiting for steps in flight, in the order given back
};

}  // namespace pitstop::scheduler
