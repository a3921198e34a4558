#include "tp_worker/model/step_updates.h"

#include "base/check.h"
#include "tp_worker/blocks/narrow.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/step_padding.h"

#include <algorithm>

namespace pitstop::tp_worker {
std::int64_t StepUpdates::num_entries(
    std::int64_t num_slots, std::int64_t num_positions, std::int64_t page_size
) {
    return num_slots * slot_pages(num_positions, page_size) + num_scratch_pages(page_size);
}

StepUpdates::StepUpdates(std::int64_t num_slots, std::int64_t num_positions, std::int64_t page_size)
    : page_size_(page_size),
      slot_pages_(slot_pages(num_positions, page_size)),
      tables_(static_cast<std::size_t>(num_slots * slot_pages_), PageId{-1}),
      uses_(static_cast<std::size_t>(num_slots)) {
    CHECK(num_entries(num_slots, num_positions, page_size) <= kEntriesMax);
}

Result<std::span<const std::int32_t>> StepUpdates::make(const StepBatch& batch) {
    ++num_made_;
    runs_.clear();
    pages_.clear();
    page_starts_.clear();
    words_.clear();
    for (std::size_t row = 0; row < batch.slots.size(); ++row) RETURN_IF_ERROR(add_row(batch, row));
    // After the requests' rows come the batch's rows of padding.
    page_starts_.resize(batch.kv_lens.size(), narrow(std::ssize(tables_)));
    const bool is_padded = batch.num_padded > 0;
    const bool is_always_there = is_padded || !batch.token_rows.empty();  // a graph needs one
    if (!is_always_there && runs_.empty()) return std::span<const std::int32_t>{};
    const bool is_given = is_padded && !goes_on(batch);
    const std::size_t num_given = is_given ? batch.slots.size() : 0;
    words_ = {
        narrow(is_padded ? static_cast<std::int64_t>(batch.slots.size()) : 0),
        narrow(static_cast<std::int64_t>(num_given)),
        narrow(static_cast<std::int64_t>(runs_.size())),
        narrow(static_cast<std::int64_t>(pages_.size()))};
    for (std::size_t row = 0; row < num_given; ++row) words_.push_back(raw(batch.tokens[row]));
    for (std::size_t row = 0; row < num_given; ++row) words_.push_back(batch.positions[row]);
    for (std::size_t row = 0; row < num_given; ++row) words_.push_back(raw(batch.slots[row]));
    for (const Run& run : runs_) words_.insert(words_.end(), {run.at, run.length, run.first});
    for (const PageId page : pages_) words_.push_back(raw(page));
    if (is_padded) note_rows(batch);
    return std::span<const std::int32_t>(words_);
}

// Records how a row's pages differ, from the first to the last difference: one run.
Result<> StepUpdates::add_row(const StepBatch& batch, std::size_t row) {
    const auto slot = static_cast<std::size_t>(raw(batch.slots[row]));
    const std::size_t begin = slot * static_cast<std::size_t>(slot_pages_);
    const auto num =
        static_cast<std::size_t>((std::int64_t{batch.kv_lens[row]} + page_size_ - 1) / page_size_);
    const std::span pages =
        batch.pages.subspan(static_cast<std::size_t>(batch.page_starts[row]), num);
    const std::span table = std::span(tables_).subspan(begin, num);
    page_starts_.push_back(narrow(static_cast<std::int64_t>(begin)));
    Use& use = uses_[slot];
    if (use.step != num_made_) use = {.step = num_made_};
    const auto first =
        static_cast<std::size_t>(std::ranges::mismatch(pages, table).in1 - pages.begin());
    if (first < use.num_pages && first < num) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "row {} (slot {}): page {} is {}; a row before it has {}",
            row,
            slot,
            first,
            raw(pages[first]),
            raw(table[first])
        );
    }
    use.num_pages = std::max(use.num_pages, num);
    if (first == num) return Ok{};
    std::size_t end = num;
    while (pages[end - 1] == table[end - 1]) --end;
    runs_.push_back({
        .at = narrow(static_cast<std::int64_t>(begin + first)),
        .length = narrow(static_cast<std::int64_t>(end - first)),
        .first = narrow(static_cast<std::int64_t>(pages_.size())),
    });
    const std::span changed = pages.subspan(first, end - first);
    pages_.insert(pages_.end(), changed.begin(), changed.end());
    std::ranges::copy(changed, table.begin() + static_cast<std::ptrdiff_t>(first));
    return Ok{};
}

// Returns whether the batch's rows are those of the last padded batch, each one position later:
// then the device has them already.
bool StepUpdates::goes_on(const StepBatch& batch) const {
    return batch.num_padded == num_padded_ && std::ranges::equal(batch.slots, slots_) &&
           std::ranges::equal(batch.tokens, tokens_) &&
           std::ranges::equal(batch.positions, positions_, {}, {}, [](std::int32_t before) {
               return before + 1;
           });
}

void StepUpdates::note_rows(const StepBatch& batch) {
    num_padded_ = batch.num_padded;
    tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    positions_.assign(batch.positions.begin(), batch.positions.end());
    slots_.assign(batch.slots.begin(), batch.slots.end());
}

}  // namespace pitstop::tp_worker
