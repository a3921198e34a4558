#include "tp_worker/model/draft_replay.h"

#include "base/check.h"
#include "tp_worker/blocks/narrow.h"

namespace pitstop::tp_worker {

void DraftReplay::clear() {
    rows_.clear();
    token_rows_.clear();
}

void DraftReplay::add(const Row& row, std::int32_t token_row) {
    rows_.push_back(row);
    for (std::int64_t i = 0; i < row.num; ++i) token_rows_.push_back(narrow(token_row + i));
}

StepBatch DraftReplay::make(std::span<const std::int64_t> num_right) {
    CHECK(num_right.size() == rows_.size());
    drafted_rows_.clear();
    positions_.clear();
    q_starts_.assign(1, 0);
    kv_lens_.clear();
    places_.clear();
    saved_places_.clear();
    saved_ends_.clear();
    std::int32_t first = 0;  // the row's first draft, among the step's drafts
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        CHECK(num_right[i] >= 0 && num_right[i] <= rows_[i].num);
        if (num_right[i] > 0) add_right(rows_[i], first, num_right[i]);
        first += narrow(rows_[i].num);
    }
    tokens_.resize(positions_.size());
    return {
        .tokens = tokens_,
        .positions = positions_,
        .q_starts = q_starts_,
        .kv_lens = kv_lens_,
        .states =
            {.places = places_,
             .from_places = places_,
             .saved_places = saved_places_,
             .saved_ends = saved_ends_},
        .drafted_rows = drafted_rows_};
}

void DraftReplay::add_right(const Row& row, std::int32_t first, std::int64_t num) {
    const bool is_saved = row.save_at > row.begin && row.save_at <= row.begin + num;
    places_.push_back(row.place);
    saved_places_.push_back(is_saved ? row.saved_place : row.place);
    saved_ends_.push_back(narrow(q_starts_.back() + (is_saved ? row.save_at - row.begin : 0)));
    for (std::int64_t i = 0; i < num; ++i) {
        drafted_rows_.push_back(narrow(first + i));
        positions_.push_back(narrow(row.begin + i));
    }
    q_starts_.push_back(narrow(std::ssize(positions_)));
    kv_lens_.push_back(narrow(row.begin + num));
}

}  // namespace pitstop::tp_worker
