#include "scheduler_proc/in_flight_step.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::scheduler {
namespace {

template <class T>
std::span<const T> take(const messages::RawArray<T>& array, std::size_t& at, std::size_t num) {
    const std::span<const T> part = std::span(array.values).subspan(at, num);
    at += num;
    return part;
}

}  // namespace

bool InFlightStep::is_complete() const {
    return std::ranges::all_of(is_done, [](bool done) { return done; });
}

std::int64_t InFlightStep::num_tokens() const {
    std::int64_t num = 0;
    for (const StepRow& row : rows) num += row.end - row.begin;
    return num;
}

std::int64_t InFlightStep::num_drafts() const {
    std::int64_t num = 0;
    for (const StepRow& row : rows) num += std::ssize(row.drafts);
    return num;
}

std::string InFlightStep::who_is_missing(int nodes) const {
    const std::size_t num_on_machine = is_done.size() / static_cast<std::size_t>(nodes);
    std::string names;
    for (std::size_t rank = 0; rank < is_done.size(); ++rank) {
        if (is_done[rank]) continue;
        names += fmt::format("{}rank {}", names.empty() ? "" : ", ", rank);
        if (nodes > 1) names += fmt::format(" on node {}", rank / num_on_machine);
    }
    return names;
}

// Returns how the routes disagree with the plan, or nothing.
std::optional<std::string> InFlightStep::mismatch_of_routes(std::span<const std::uint8_t> given
) const {
    std::int64_t num_rows = 0;
    for (const StepRow& row : rows) num_rows += row.num_routed;
    const std::int64_t num_bytes = num_rows * routes.row_bytes();
    if (std::ssize(given) != num_bytes)
        return fmt::format("routes has {} bytes, not {}", given.size(), num_bytes);
    const auto width = static_cast<std::size_t>(routes.id_bytes());
    for (std::size_t i = 0; i < given.size(); i += width) {
        const std::int64_t expert = given[i] + (width == 2 ? given[i + 1] << 8 : 0);
        if (expert >= routes.num_experts)
            return fmt::format("routes has expert {}; there are {}", expert, routes.num_experts);
    }
    return std::nullopt;
}

std::optional<std::string> InFlightStep::mismatch_of_load(std::span<const std::int64_t> given
) const {
    const std::int64_t num = routes.layers * routes.num_experts;
    if (given.empty() || (std::ssize(given) == num && num <= messages::ExpertLoad::kCountsMax))
        return std::nullopt;
    return fmt::format("expert_load has {} counts, not {}", given.size(), num);
}

std::optional<std::string> InFlightStep::mismatch_of_supports(
    std::span<const messages::DrawSupport> given
) const {
    std::size_t num = 0;
    for (const StepRow& row : rows) num += row.has_supports ? row.num_sampled() : 0;
    if (given.size() != num)
        return fmt::format("supports has {} entries, not {}", given.size(), num);
    for (const messages::DrawSupport& one : given) {
        const bool is_whole = std::ssize(one.ids) == one.num_ids;
        if (is_whole && one.num_ids <= messages::kSupportMax) continue;
        if (one.ids.empty() && one.num_ids > messages::kSupportMax) continue;
        return fmt::format("supports has {} ids of {}", one.ids.size(), one.num_ids);
    }
    return std::nullopt;
}

std::optional<std::string> InFlightStep::mismatch(const messages::StepResult& result) const {
    std::size_t num_sampled = 0, num_top = 0, num_ids = 0;
    std::size_t num_scored = 0, num_scored_top = 0, num_scored_ids = 0;
    for (const StepRow& row : rows) {
        const auto scored = static_cast<std::size_t>(row.num_scored);
        num_scored += scored;
        num_scored_top += scored * row.num_top;
        num_scored_ids += scored * row.num_ids;
        num_sampled += row.num_sampled();
        num_top += row.num_sampled() * row.num_top;
        num_ids += row.num_sampled() * row.num_ids;
    }
    const auto check = [](std::string_view name, std::size_t has, std::size_t needs) {
        return has == needs ? std::optional<std::string>()
                            : fmt::format("{} has {} entries, not {}", name, has, needs);
    };
    const messages::StepScores& scores = result.scores;
    if (auto p = check("sampled", result.sampled.values.size(), num_sampled)) return p;
    if (auto p = check("logprobs", result.logprobs.values.size(), num_sampled)) return p;
    if (auto p = check("ranks", result.ranks.values.size(), num_sampled)) return p;
    if (auto p = check("top_ids", result.top_ids.values.size(), num_top)) return p;
    if (auto p = check("top_logprobs", result.top_logprobs.values.size(), num_top)) return p;
    if (auto p = check("ids_logprobs", result.ids_logprobs.values.size(), num_ids)) return p;
    if (auto p = check("scores", scores.logprobs.values.size(), num_scored)) return p;
    if (auto p = check("scores.ranks", scores.ranks.values.size(), num_scored)) return p;
    if (auto p = check("scores.top_ids", scores.top_ids.values.size(), num_scored_top)) return p;
    if (auto p = check("scores.top_logprobs", scores.top_logprobs.values.size(), num_scored_top))
        return p;
    if (auto p = check("scores.ids_logprobs", scores.ids_logprobs.values.size(), num_scored_ids))
        return p;
    if (auto p = mismatch_of_routes(result.routes.values)) return p;
    if (auto p = mismatch_of_load(result.expert_load.values)) return p;
    if (auto p = mismatch_of_supports(result.supports)) return p;
    std::int64_t next_undrawn = 0;
    for (const std::int64_t place : result.undrawn) {
        if (place < next_undrawn || place >= static_cast<std::int64_t>(num_sampled))
            return fmt::format("undrawn has place {} of {}", place, num_sampled);
        next_undrawn = place + 1;
    }
    std::int64_t next = 0;
    for (const messages::NotFiniteRow& bad : result.not_finite) {
        if (bad.row < next || bad.row >= std::ssize(rows))
            return fmt::format("not_finite has row {}; the next may be {}", bad.row, next);
        next = bad.row + 1;
        const StepRow& row = rows[static_cast<std::size_t>(bad.row)];
        if (bad.position < row.begin || bad.position >= row.end)
            return fmt::format("not_finite has position {} of row {}", bad.position, bad.row);
    }
    return std::nullopt;
}

const messages::NotFiniteRow* ResultReader::not_finite() {
    const std::int64_t row = row_++;
    const auto& all = result_.not_finite;
    if (not_finite_ == all.size() || all[not_finite_].row != row) return nullptr;
    return &all[not_finite_++];
}

std::span<const SampledToken> ResultReader::sampled(const StepRow& row) {
    row_tokens_.clear();
    for (std::size_t i = 0; i < row.num_sampled(); ++i) row_tokens_.push_back(take_sampled(row));
    std::size_t num = std::min<std::size_t>(row_tokens_.size(), 1);
    while (num < row_tokens_.size() && row_tokens_[num - 1].token == row.drafts[num - 1]) ++num;
    return std::span(row_tokens_).first(num);
}

SampledToken ResultReader::take_sampled(const StepRow& row) {
    SampledToken part;
    const auto place = static_cast<std::int64_t>(sampled_);
    if (undrawn_ < result_.undrawn.size() && result_.undrawn[undrawn_] == place) {
        ++undrawn_;
    } else {
        part.token = result_.sampled.values[sampled_];
    }
    part.logprob = result_.logprobs.values[sampled_];
    part.rank = result_.ranks.values[sampled_];
    ++sampled_;
    std::size_t top = top_;
    part.top_ids = take(result_.top_ids, top, row.num_top);
    part.top_logprobs = take(result_.top_logprobs, top_, row.num_top);
    part.ids_logprobs = take(result_.ids_logprobs, ids_, row.num_ids);
    if (row.has_supports) part.support = &result_.supports[supports_++];
    return part;
}

std::span<const std::uint8_t> ResultReader::routes(const StepRow& row) {
    return take(result_.routes, routes_, static_cast<std::size_t>(row.num_routed * route_bytes_));
}

RowScores ResultReader::scores(const StepRow& row) {
    const auto num = static_cast<std::size_t>(row.num_scored);
    RowScores part;
    std::size_t scored = scored_;
    part.ranks = take(result_.scores.ranks, scored, num);
    part.logprobs = take(result_.scores.logprobs, scored_, num);
    std::size_t top = scored_top_;
    part.top_ids = take(result_.scores.top_ids, top, num * row.num_top);
    part.top_logprobs = take(result_.scores.top_logprobs, scored_top_, num * row.num_top);
    part.ids_logprobs = take(result_.scores.ids_logprobs, scored_ids_, num * row.num_ids);
    return part;
}

}  // namespace pitstop::scheduler
