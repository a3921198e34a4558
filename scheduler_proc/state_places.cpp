#include "scheduler_proc/state_places.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::scheduler {

StatePlaces::StatePlaces(std::int64_t num_places, std::int64_t num_pages) {
    CHECK(num_places >= 0 && num_pages >= 0);
    places_.resize(static_cast<std::size_t>(num_places));
    of_page_.resize(static_cast<std::size_t>(num_pages));
    announcements_.resize(static_cast<std::size_t>(num_pages));
    held_.resize(static_cast<std::size_t>(num_pages));
    for (std::int64_t i = 0; i < num_places; ++i) free_.insert(static_cast<CheckpointId>(i));
}

// Skips places that steps in flight use; a row uses at most two places.
std::optional<CheckpointId> StatePlaces::find_free() const {
    for (const CheckpointId id : free_) {
        if (at(id).latest <= last_done_) return id;
    }
    return std::nullopt;
}

std::optional<CheckpointId> StatePlaces::evict() {
    for (const Rank& rank : evictable_) {
        const auto id = std::get<CheckpointId>(rank);
        if (at(id).latest > last_done_) continue;
        drop(at(id).page);
        ++counts_.num_evicted;
        return id;
    }
    return std::nullopt;
}

std::optional<CheckpointId> StatePlaces::reserve(Purpose purpose, StepId step) {
    if (purpose == Purpose::kTrail && num_trails_ >= size() / 2) return std::nullopt;
    std::optional<CheckpointId> found = find_free();
    if (!found && purpose != Purpose::kSpare) found = evict();
    if (!found) return std::nullopt;
    free_.erase(*found);
    at(*found) = {.use = Place::Use::kReserved, .purpose = purpose, .saved = step, .latest = step};
    if (purpose == Purpose::kTrail) ++num_trails_;
    ++counts_.num_saved;
    return found;
}

std::optional<CheckpointId> StatePlaces::renew(PageId trail, StepId step) {
    if (!is_trail(trail) || at(*of(trail)).latest > last_done_) return std::nullopt;
    const CheckpointId id = *of(trail);
    of_page_[index_of(trail)].reset();
    at(id) = {
        .use = Place::Use::kReserved, .purpose = Purpose::kTrail, .saved = step, .latest = step};
    ++counts_.num_saved;
    return id;
}

void StatePlaces::keep(CheckpointId id, PageId page) {
    Place& place = at(id);
    CHECK(place.use == Place::Use::kReserved && !of(page));
    place.use = Place::Use::kKept;
    place.page = page;
    place.last_used = place.purpose == Purpose::kSpare ? 0 : ++tick_;
    of_page_[index_of(page)] = id;
    announcements_[index_of(page)] = 0;
    list(id);
}

void StatePlaces::release(CheckpointId id) {
    CHECK(at(id).use == Place::Use::kReserved);
    make_free(id);
}

std::optional<CheckpointId> StatePlaces::of(PageId page) const {
    return of_page_.empty() ? std::nullopt : of_page_[index_of(page)];
}

bool StatePlaces::is_saved_by(PageId page, StepId step) const {
    return at(*of(page)).saved == step;
}

void StatePlaces::restore(PageId page, StepId step) {
    const CheckpointId id = *of(page);
    end_trail(page);
    unlist(id);
    at(id).latest = std::max(at(id).latest, step);
    at(id).last_used = ++tick_;
    list(id);
    ++counts_.num_restored;
}

void StatePlaces::drop(PageId page) {
    if (of_page_.empty()) return;
    announcements_[index_of(page)] = 0;
    const std::optional<CheckpointId> id = of(page);
    if (!id) return;
    unlist(*id);
    of_page_[index_of(page)].reset();
    make_free(*id);
}

void StatePlaces::end_trail(PageId page) {
    if (!is_trail(page)) return;
    const CheckpointId id = *of(page);
    at(id).purpose = Purpose::kPrompt;
    --num_trails_;
    list(id);
}

bool StatePlaces::is_trail(PageId page) const {
    const std::optional<CheckpointId> id = of(page);
    return id && at(*id).purpose == Purpose::kTrail;
}

void StatePlaces::set_held(PageId page, bool is_held) {
    const std::optional<CheckpointId> id = of(page);
    if (id) unlist(*id);
    held_[index_of(page)] = is_held;
    if (id) list(*id);
}

std::optional<std::uint64_t> StatePlaces::announce(PageId page) {
    if (of_page_.empty() || is_announced(page)) return std::nullopt;
    return announcements_[index_of(page)] = ++num_announced_;
}

void StatePlaces::withdraw(PageId page, std::uint64_t announcement) {
    std::uint64_t& current = announcements_[index_of(page)];
    if (current == announcement) current = 0;
}

bool StatePlaces::is_announced(PageId page) const {
    return !announcements_.empty() && announcements_[index_of(page)] != 0;
}

// Keeps `latest`, because steps in flight may still use the place.
void StatePlaces::make_free(CheckpointId id) {
    Place& place = at(id);
    if (place.purpose == Purpose::kTrail) --num_trails_;
    place = {.latest = place.latest};
    free_.insert(id);
}

void StatePlaces::list(CheckpointId id) {
    if (at(id).purpose != Purpose::kTrail) evictable_.insert(rank_of(id));
}

void StatePlaces::unlist(CheckpointId id) { evictable_.erase(rank_of(id)); }

std::optional<std::string> StatePlaces::audit(
    std::span<const CheckpointId> reserved, std::span<const PageId> trails
) const {
    std::int64_t num_trails = 0;
    std::size_t num_kept = 0;
    std::size_t num_evictable = 0;
    for (std::int64_t i = 0; i < size(); ++i) {
        const auto id = static_cast<CheckpointId>(i);
        const Place& place = at(id);
        const auto num_owners = std::ranges::count(reserved, id);
        const bool is_reserved = place.use == Place::Use::kReserved;
        if (num_owners != (is_reserved ? 1 : 0))
            return fmt::format("place {}: {} rows save to it", i, num_owners);
        if (free_.contains(id) != (place.use == Place::Use::kFree))
            return fmt::format("place {} is listed as free, or not, wrongly", i);
        if (place.purpose == Purpose::kTrail) ++num_trails;
        if (place.use != Place::Use::kKept) continue;
        ++num_kept;
        if (of(place.page) != id)
            return fmt::format("place {} is page {}'s, which has another", i, raw(place.page));
        if (place.purpose != Purpose::kTrail) {
            ++num_evictable;
            if (!evictable_.contains(rank_of(id)))
                return fmt::format("place {} can be evicted, but is not listed", i);
        } else if (std::ranges::count(trails, place.page) != 1) {
            return fmt::format("place {} is the trail of no request, or of several", i);
        }
    }
    if (num_evictable != evictable_.size())
        return fmt::format(
            "{} places can be evicted, {} are listed", num_evictable, evictable_.size()
        );
    if (num_trails != num_trails_) return fmt::format("{} trails, not {}", num_trails, num_trails_);
    const auto num_of_pages =
        std::ranges::count_if(of_page_, [](const auto& id) { return id.has_value(); });
    if (static_cast<std::size_t>(num_of_pages) != num_kept)
        return fmt::format("{} pages have checkpoints, {} places are kept", num_of_pages, num_kept);
    return std::nullopt;
}

}  // namespace pitstop::scheduler
