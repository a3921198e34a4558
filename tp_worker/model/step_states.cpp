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
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const messages::PlanRow& row = plan.rows[i];
        const std::int32_t place = raw(row.slot);
        if (std::ranges::find(places_, place) != places_.end()) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "row {}: slot {} has a row before in this step; its recurrent state takes one",
                i,
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
                i,
                place,
                row.begin,
                row.state_from ? "checkpoint" : "slot",
                row.state_from ? raw(*row.state_from) : place,
                len
            );
        }
        const std::int32_t saved = row.save_to ? place_of(*row.save_to) : place;
        const std::int64_t saved_len = row.save_to ? row.save_at - row.begin : 0;
        places_.push_back(place);
        from_places_.push_back(from);
        saved_places_.push_back(saved);
        saved_ends_.push_back(narrow(begin + saved_len));
        begin += row.num_new;
    }
    // A row may only restore a checkpoint that no row of its plan saves, so all restores are
    // checked first.
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const messages::PlanRow& row = plan.rows[i];
        lens_[static_cast<std::size_t>(saved_places_[i])] = row.save_at;
        lens_[static_cast<std::size_t>(places_[i])] = row.begin + row.num_new;
    }
    return Ok{};
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
