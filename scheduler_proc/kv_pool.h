// Holds what requests need to run: KV pages, the prefix cache through which they share them, and
// slots.
//
// A request has a lease from its start until it gives it back, and what a step in flight may still
// use is free only when that step is done. So every page is free, a node of the prefix cache, or
// private to one lease, and every slot is free or in one lease.
//
// Owns:    every page and slot of the replica.
// Thread:  the loop thread only.
// Bounded: by the pages and slots that it is made with.
#pragma once

#include "base/ids.h"
#include "scheduler_proc/epoch_range.h"
#include "scheduler_proc/page_allocator.h"
#include "scheduler_proc/prefix_cache.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// Says what a request has of the pool while it runs.
struct Lease {
    std::optional<SlotId> slot{};
    std::vector<PageId> pages{};            // of the planned positions, perhaps one more
    std::vector<EpochRange> page_epochs{};  // [pages], that computed each so far
    std::size_t num_shared = 0;             // the first so many pages are nodes of the prefix cache
    EpochRange kv{};                        // that computed all its KV
    StepId last_step{};                     // the last one that may use it
};

class KvPool {
  public:
    struct Size {
        std::int64_t num_pages = 0;
        std::int64_t page_size = 1;  // tokens
        std::int64_t num_slots = 0;
    };

    KvPool() = default;  // nothing
    explicit KvPool(const Size& size);

    // ---- leases ----
    // Starts one with a slot and the pages of `match`, if `num_tokens` positions have room beside
    // `num_claimed` pages that others need next. REQUIRES: has_slot().
    [[nodiscard]] std::optional<Lease> start(
        PrefixCache::Match match, std::int64_t num_tokens, std::int64_t num_claimed
    );
    // Gives it pages for its first `num_tokens` positions: free ones, then cached ones that nobody
    // uses. Returns how many are missing; unless that is 0, it got none.
    [[nodiscard]] std::int64_t grow(Lease& lease, std::int64_t num_tokens);
    // Positions [begin, end) are computed under `epoch`.
    void stamp(Lease& lease, std::int64_t begin, std::int64_t end, Epoch epoch) const;
    // Puts the full pages of `tokens`, which are its first ones, into the prefix cache; `step` is
    // the last that writes to them. Where another lease was first with the same page, either this
    // one goes on with its own (kKeep, for pages that a plan being made writes to), or it takes the
    // other's (kReplace), so that later pages can follow.
    enum class Duplicates { kKeep, kReplace };
    void share(Lease& lease, std::span<const TokenId> tokens, StepId step, Duplicates duplicates);
    // What these pages hold is worth nothing: nobody finds any of them in the prefix cache any
    // more.
    void forget(std::span<const PageId> pages);
    [[nodiscard]] bool has_forgotten(std::span<const PageId> pages) const;
    // Takes it back at once, or when the last step that may use it is done.
    void give_back(Lease lease);

    // Step `step` is done: what it was the last to use is taken back at once from now on,
    void end_step(StepId step);
    // and this takes back what has waited for it.
    void release_ended();

    // Drops from the prefix cache what nobody uses. Returns how many pages that freed.
    std::int64_t clear_cache() { return cache_.evict(cache_.num_nodes(), pages_); }

    [[nodiscard]] bool has_slot() const { return !free_slots_.empty(); }
    [[nodiscard]] std::int64_t num_slots() const { return size_.num_slots; }
    [[nodiscard]] std::int64_t num_pages() const { return size_.num_pages; }
    [[nodiscard]] std::int64_t num_free() const { return pages_.num_free(); }
    // Returns how many pages become free or evictable when the steps in flight are done; perhaps
    // there are a few more.
    [[nodiscard]] std::int64_t num_coming() const;
    [[nodiscard]] std::int64_t pages_for(std::int64_t num_tokens) const {
        return (num_tokens + size_.page_size - 1) / size_.page_size;
    }
    [[nodiscard]] std::int64_t page_size() const { return size_.page_size; }
    [[nodiscard]] const PrefixCache& cache() const { return cache_; }

    // Returns what is wrong if `held` are all leases that were not given back, or nothing. It is
    // for tests and the simulator, as it walks every page.
    [[nodiscard]] std::optional<std::string> audit(std::span<const Lease* const> held) const;

  private:
    void release(const Lease& lease);

    Size size_{};
    PageAllocator pages_{};
    PrefixCache cache_{};
    std::vector<SlotId> free_slots_{};  // a stack
    StepId last_done_{};                // steps up to here are done
    std::vector<Lease> waiting_{};      // for steps in flight, in the order given back
};

}  // namespace pitstop::scheduler
