// The difference of each step on a GPU from the step before: changed pages in the requests' tables,
// and the rows of a step of decodes. Rows that are those of the last step of decodes, each one
// position later, are not sent. The device applies the difference (kernels/step_rows.h).
//
// The host keeps a copy of the device's contents, so that a slot's new request, a retraction, or a
// step of prompts between two of decodes needs no special handling.
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
    // Requests have at most `num_positions` positions. REQUIRES: num_entries() <= kEntriesMax.
    StepUpdates(std::int64_t num_slots, std::int64_t num_positions, std::int64_t page_size);

    static constexpr std::int64_t kEntriesMax = (std::int64_t{1} << 31) - 1;
    // Returns the entries of all tables, including the scratch pages after them.
    [[nodiscard]] static std::int64_t num_entries(
        std::int64_t num_slots, std::int64_t num_positions, std::int64_t page_size
    );
    // Returns the entries of a slot.
    [[nodiscard]] static std::int64_t slot_pages(
        std::int64_t num_positions, std::int64_t page_size
    ) {
        return (num_positions + page_size - 1) / page_size;
    }

    // Returns the words of the update; none if nothing changes, except for a padded batch, which
    // always has one. Borrowed until the next call. REQUIRES: the batch's ranges are checked; its
    // slots have tables; each update is applied, in the order made. Errors: kInvalidArgument for
    // rows of one request with different pages at one place.
    [[nodiscard]] Result<std::span<const std::int32_t>> make(const StepBatch& batch);
    // [R] of the last batch: where its rows' tables begin, and the scratch pages for its
    // rows of padding.
    [[nodiscard]] std::span<const std::int32_t> page_starts() const { return page_starts_; }

  private:
    // During step `step`, the first num_pages entries of a slot's table must not change again.
    struct Use {
        std::int64_t step = 0;  // counted like num_made_
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
    // The device's contents after the last update:
    std::vector<PageId> tables_;  // [num_slots][slot_pages]; -1: none yet
    std::vector<TokenId> tokens_{};
    std::vector<std::int32_t> positions_{};
    std::vector<SlotId> slots_{};
    std::int64_t num_padded_ = 0;
    // The contents of the last update:
    std::vector<Use> uses_;  // by slot
    std::vector<Run> runs_{};
    std::vector<PageId> pages_{};
    std::vector<std::int32_t> page_starts_{};
    std::vector<std::int32_t> words_{};
};

}  // namespace pitstop::tp_worker
