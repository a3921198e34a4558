// Makes, of each step for a GPU, what brings the device there from the step before: the pages that
// changed in the tables of the requests, and of a step of decodes its rows, unless they are those
// of the last such step, each a position on. The device applies it (kernels/step_rows.h).
//
// What the device has is known here by value: a slot that another request takes over, a retraction
// or a step of prompts between two of decodes need no word.
//
// Thread: the stream's.
// Bounded: the tables, and the words of a step's rows and pages.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "kernels/step_rows.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

struct StepBatch;

class StepUpdates {
  public:
    // Requests have `num_positions` positions at most. REQUIRES: num_entries() <= kEntriesMax.
    StepUpdates(std::int64_t num_slots, std::int64_t num_positions, std::int64_t page_size);

    static constexpr std::int64_t kEntriesMax = (std::int64_t{1} << 31) - 1;
    // Counts those of all tables, with those of the scratch pages behind them.
    [[nodiscard]] static std::int64_t num_entries(
        std::int64_t num_slots, std::int64_t num_positions, std::int64_t page_size
    );
    // Counts those of a slot.
    [[nodiscard]] static std::int64_t slot_pages(
        std::int64_t num_positions, std::int64_t page_size
    ) {
        return (num_positions + page_size - 1) / page_size;
    }

    // Returns the words of the update; none where nothing changes, but of a padded batch, which
    // always has one. Borrowed until the next call. REQUIRES: the batch's ranges are checked; its
    // slots have tables; each update is applied, in the order made. Errors: kInvalidArgument, rows
    // of one request with different pages at one place.
    [[nodiscard]] Result<std::span<const std::int32_t>> make(const StepBatch& batch);
    // [R] for the last batch: where its rows' tables begin, and the scratch pages for rows of
    // padding that it has.
    [[nodiscard]] std::span<const std::int32_t> page_starts() const { return page_starts_; }

  private:
    // Says until when a slot's table may not change again, and how much of it.
    struct Use {
        std::int64_t step = 0;  // counted as num_made_ is
        std::size_t num_pages = 0;
    };
    struct Run {
        std::int32_t at = 0;      // in the tables
        std::int32_t length = 0;  // pages
        std::int32_t first = 0;   // in pages_
    };
    Result<> add_row(const StepBatch& batch, std::size_t row);
    [[nodiscard]] bool goes_on(const StepBatch& batch) const;
    void note_rows(const StepBatch& batch);

    std::int64_t page_size_;
    std::int64_t slot_pages_;
    std::int64_t num_made_ = 0;
    // They are as the device has them after the last update.
    std::vector<PageId> tables_;  // [num_slots][slot_pages]; -1: none yet
    std::vector<TokenId> tokens_{};
    std::vector<std::int32_t> positions_{};
    std::vector<SlotId> slots_{};
    std::int64_t num_padded_ = 0;
    // These belong to the last update.
    std::vector<Use> uses_;  // by slot
    std::vector<Run> runs_{};
    std::vector<PageId> pages_{};
    std::vector<std::int32_t> page_starts_{};
    std::vector<std::int32_t> words_{};
};

}  // namespace pitstop::tp_worker
