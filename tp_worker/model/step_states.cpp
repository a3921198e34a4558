#include "tp_worker/model/step_states.h"

#include "base/check.h"
#include "tp_worker/blocks/narrow.h"

#include <algorithm>

namespace pitstop::tp_worker {

Result<> StepStates::prepare(const messages::StepPlan& plan) {
    places_.clear();
    from_places_.clear();
    saved_places_.clear();
    saved_ends_.clear();
    stored_ends_.clear();
    drafts_.clear();
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        RETURN_IF_ERROR(add_row(i, plan.rows[i], begin));
        begin += plan.rows[i].num_new;
    }
    if (std::ssize(drafts_.token_rows()) > messages::kStateDraftsMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a plan with {} drafts over recurrent states; accepted are {}",
            drafts_.token_rows().size(),
            messages::kStateDraftsMax
        );
    }
    // A row may only restore a checkpoint that no row of its plan saves, so all restores are
    // checked first.
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const messages::PlanRow& row = plan.rows[i];
        lens_[static_cast<std::size_t>(saved_places_[i])] = row.save_at;
        lens_[static_cast<std::size_t>(places_[i])] =
            row.begin + row.num_new - row.num_drafted.value_or(0);
    }
    return Ok{};
}

// `begin` is the index of the row's first token in the step.
Result<> StepStates::add_row(std::size_t index, const messages::PlanRow& row, std::int64_t begin) {
    const std::int32_t place = raw(row.slot);
    if (std::ranges::find(places_, place) != places_.end()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "row {}: slot {} has an earlier row in this step; its recurrent state takes one row "
            "per step",
            index,
            place
        );
    }
    const std::int32_t from = row.state_from ? place_of(*row.state_from) : place;
    const std::int64_t len = lens_[static_cast<std::size_t>(from)];
    if (row.begin != 0 && row.begin != len) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "row {} (slot {}) begins at position {}; the recurrent state in {} {} is that of "
            "{} "
            "tokens",
            index,
            place,
            row.begin,
            row.state_from ? "checkpoint" : "slot",
            row.state_from ? raw(*row.state_from) : place,
            len
        );
    }
    const std::int64_t num_drafted = row.num_drafted.value_or(0);
    const std::int64_t stored_end = row.begin + row.num_new - num_drafted;
    const std::int32_t saved = row.save_to ? place_of(*row.save_to) : place;
    const bool is_saved = row.save_to && row.save_at <= stored_end;
    places_.push_back(place);
    from_places_.push_back(from);
    saved_places_.push_back(is_saved ? saved : place);
    saved_ends_.push_back(narrow(begin + (is_saved ? row.save_at - row.begin : 0)));
    stored_ends_.push_back(narrow(begin + row.num_new - num_drafted));
    if (num_drafted == 0) return Ok{};
    drafts_.add(
        {.place = place,
         .begin = stored_end,
         .num = num_drafted,
         .saved_place = saved,
         .save_at = is_saved ? 0 : row.save_at},
        stored_ends_.back()
    );
    return Ok{};
}

StepBatch StepStates::accept(std::span<const std::int64_t> num_right) {
    const StepBatch replay = drafts_.make(num_right);
    for (std::size_t i = 0; i < num_right.size(); ++i) {
        const DraftReplay::Row& row = drafts_.rows()[i];
        const std::int64_t end = row.begin + num_right[i];
        if (row.save_at > row.begin && row.save_at <= end)
            lens_[static_cast<std::size_t>(row.saved_place)] = row.save_at;
        lens_[static_cast<std::size_t>(row.place)] = end;
    }
    return replay;
}

void StepStates::pad(std::int64_t num_rows) {
    const auto num = static_cast<std::size_t>(num_rows);
    CHECK(places_.size() <= num);
    for (auto* const places : {&places_, &from_places_, &saved_places_}) places->resize(num, -1);
    saved_ends_.resize(num, 0);
}

std::int32_t StepStates::place_of(messages::CheckpointId id) const {
    return narrow(num_slots_ + raw(id));
}

}  // namespace pitstop::tp_worker
