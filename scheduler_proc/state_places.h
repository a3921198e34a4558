// The places for checkpoints: copies of requests' recurrent state. Every rank keeps a checkpoint
// under the same number.
//
//   free ─► reserved ─► kept ─► free
//
// A row that saves a state reserves a place. Then a node of the prefix cache keeps the place. The
// node's checkpoint is the state after its last token, and has the node's identity (P9). When a
// place is needed, the least recently used checkpoint is evicted, those on hold (held_prefixes.h)
// after all others.
//
// A running request that decodes renews its checkpoint from page to page: a trail. Trails
// are not evicted. Trails use at most half of the places, so that prompts can use as
// many.
// A place is not written while a step in flight reads or writes it.
//
// Thread:  the loop thread only.
// Bounded: by the number of places and pages; allocates little after construction.
#pragma once

#include "base/ids.h"
#include "messages/steps.h"

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace pitstop::scheduler {

using messages::CheckpointId;

class StatePlaces {
  public:
    StatePlaces() = default;  // no places
    StatePlaces(std::int64_t num_places, std::int64_t num_pages);

    // The purpose of a checkpoint, which decides which place it may use.
    enum class Purpose {
        // of a prompt's end or a branch: uses a free place, or evicts another checkpoint
        kPrompt,
        kSpare,  // within a long prompt: uses free places only; evicted before all others
        // of a decode: like kPrompt, while fewer than half of the places are kTrail
        kTrail,
    };

    // Reserves a place to which `step` saves. Returns nothing if no place is available.
    [[nodiscard]] std::optional<CheckpointId> reserve(Purpose purpose, StepId step);
    // Reserves the place of a node's trail, whose checkpoint is then lost. Returns nothing unless
    // the node has a trail that no step in flight uses.
    [[nodiscard]] std::optional<CheckpointId> renew(PageId trail, StepId step);
    // Gives the reserved place to the node. REQUIRES: !of(page).
    void keep(CheckpointId place, PageId page);
    // Frees the reserved place without using its content.
    void release(CheckpointId place);

    // Returns the node's checkpoint, if it has one.
    [[nodiscard]] std::optional<CheckpointId> of(PageId page) const;
    // Returns whether the step saves the node's checkpoint. REQUIRES: of(page).
    [[nodiscard]] bool is_saved_by(PageId page, StepId step) const;
    // Records that step `step` restores the node's checkpoint, which stops being a trail.
    // REQUIRES: of(page).
    void restore(PageId page, StepId step);
    // Frees the place of the node's checkpoint, if any: the checkpoint is worthless, or the node is
    // gone.
    void drop(PageId page);
    // Makes the node's trail an ordinary checkpoint: its request has ended, or has a newer trail.
    void end_trail(PageId page);
    [[nodiscard]] bool is_trail(PageId page) const;
    // Sets whether the node's current and later checkpoints are on hold: evicted after all others.
    void set_held(PageId page, bool is_held);

    // Announces a checkpoint for a node that has none, so that other requests wait for it. Returns
    // nothing if another request has announced one.
    [[nodiscard]] std::optional<std::uint64_t> announce(PageId page);
    // Ends this announcement, unless the node has none or a newer one.
    void withdraw(PageId page, std::uint64_t announcement);
    [[nodiscard]] bool is_announced(PageId page) const;

    // Records that all steps up to `step` are done: places that they used may be overwritten.
    void end_step(StepId step) { last_done_ = step; }

    struct Counts {
        std::int64_t num_saved = 0;
        std::int64_t num_restored = 0;
        std::int64_t num_evicted = 0;
    };
    [[nodiscard]] const Counts& counts() const { return counts_; }
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
    [[nodiscard]] std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }

    // Returns what is wrong, or nothing, given that these places are reserved and these nodes have
    // trails. For tests and the simulator: visits every place and page.
    [[nodiscard]] std::optional<std::string> audit(
        std::span<const CheckpointId> reserved, std::span<const PageId> trails
    ) const;

  private:
    struct Place {
        enum class Use : std::uint8_t { kFree, kReserved, kKept };
        Use use = Use::kFree;
        Purpose purpose = Purpose::kPrompt;
        PageId page{};    // kKept
        StepId saved{};   // the step that saved it
        StepId latest{};  // the last step that reads or writes it
        std::uint64_t last_used = 0;
    };
    [[nodiscard]] Place& at(CheckpointId id) { return places_[static_cast<std::size_t>(raw(id))]; }
    [[nodiscard]] const Place& at(CheckpointId id) const {
        return places_[static_cast<std::size_t>(raw(id))];
    }
    [[nodiscard]] static std::size_t index_of(PageId page) {
        return static_cast<std::size_t>(raw(page));
    }
    // The key of the order of eviction.
    using Rank = std::tuple<bool, std::uint64_t, CheckpointId>;  // is held, last_used, place
    [[nodiscard]] Rank rank_of(CheckpointId id) const {
        return {held_[index_of(at(id).page)], at(id).last_used, id};
    }
    [[nodiscard]] std::optional<CheckpointId> find_free() const;
    [[nodiscard]] std::optional<CheckpointId> evict();
    void make_free(CheckpointId id);
    void list(CheckpointId id);
    void unlist(CheckpointId id);

    std::vector<Place> places_{};
    std::vector<std::optional<CheckpointId>> of_page_{};  // [num_pages]
    std::vector<std::uint64_t> announcements_{};          // [num_pages]; 0: none
    std::vector<bool> held_{};                            // [num_pages]
    std::set<CheckpointId> free_{};
    std::set<Rank> evictable_{};
    std::int64_t num_trails_ = 0;  // reserved or kept
    StepId last_done_{};
    std::uint64_t tick_ = 0;
    std::uint64_t num_announced_ = 0;
    Counts counts_{};
};

}  // namespace pitstop::scheduler
