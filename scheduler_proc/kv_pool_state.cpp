// Checkpoints in the pool: which states are saved, and at which node each is kept.
#include "base/check.h"
#include "scheduler_proc/kv_pool.h"

#include <algorithm>

namespace pitstop::scheduler {

void KvPool::restore(Lease& lease, StepId step) {
    if (!has_state() || lease.pages.empty()) return;
    const PageId last = lease.pages.back();
    lease.state.from = cache_.places()->of(last);
    cache_.places()->restore(last, step);
}

// A row saves one state, so a row that would pass both positions ends at the branch. The second
// position, `last`, is the last page's first token: there later requests with the same tokens
// continue, because every request computes its last token for the logits.
std::int64_t KvPool::end_of_row(
    const Lease& lease, std::int64_t begin, std::int64_t end, std::int64_t num_known
) const {
    if (!lease.state.branch) return end;
    const std::int64_t branch = lease.state.branch->position;
    const std::int64_t last = (num_known - 1) / size_.page_size * size_.page_size;
    return begin < branch && branch < last && last <= end ? branch : end;
}

std::optional<KvPool::Save> KvPool::save_prefill(
    Lease& lease, std::int64_t begin, std::int64_t end, std::int64_t num_known, StepId step
) {
    if (!has_state() || lease.is_private) return std::nullopt;
    StatePlaces& places = *cache_.places();
    const auto is_inside = [&](std::int64_t position) {
        return begin < position && position <= end;
    };
    const std::int64_t stride = whole_pages(size_.spare_tokens);
    const std::int64_t last = (num_known - 1) / size_.page_size * size_.page_size;
    const bool is_at_branch = lease.state.branch && lease.state.branch->position <= end;
    std::int64_t position = end / stride * stride;
    if (is_inside(last)) position = last;
    if (is_at_branch) {
        position = lease.state.branch->position;
        end_branch(lease);
    }
    if (!is_inside(position)) return std::nullopt;
    const PageId page = lease.pages[static_cast<std::size_t>(position / size_.page_size) - 1];
    CHECK(cache_.holds(page));
    std::optional<CheckpointId> place;
    const bool is_spare = !is_at_branch && position != last;
    if (!places.of(page)) {
        using Purpose = StatePlaces::Purpose;
        place = places.reserve(is_spare ? Purpose::kSpare : Purpose::kPrompt, step);
    }
    if (!place) return std::nullopt;
    places.keep(*place, page);
    return Save{*place, position};
}

// A state after drafts may turn out wrong, so it never overwrites the latest checkpoint.
std::optional<KvPool::Save> KvPool::save_decode(
    Lease& lease, std::int64_t certain, std::int64_t end, StepId step
) {
    if (!has_state() || lease.is_private) return std::nullopt;
    const std::int64_t stride = whole_pages(size_.trail_tokens);
    const std::int64_t position = (certain + stride - 1) / stride * stride;
    if (position > end) return std::nullopt;
    StatePlaces& places = *cache_.places();
    std::optional<CheckpointId> place = places.reserve(StatePlaces::Purpose::kTrail, step);
    if (!place && lease.state.trail && position == certain)
        place = places.renew(*lease.state.trail, step);
    if (!place) return std::nullopt;
    lease.state.savings.push_back({*place, position, step});
    return Save{*place, position};
}

void KvPool::keep_saved(Lease& lease, StepId step, std::int64_t end) {
    std::erase_if(lease.state.savings, [&](const LeaseState::Saving& saving) {
        if (saving.step > step || saving.position > end) return false;
        StatePlaces& places = *cache_.places();
        const auto last = static_cast<std::size_t>(saving.position / size_.page_size) - 1;
        const PageId page = lease.pages[last];
        const bool is_node = last < lease.num_shared && !cache_.is_forgotten(page);
        if (!is_node || places.of(page)) {
            places.release(saving.place);
            return true;
        }
        places.keep(saving.place, page);
        if (lease.state.trail && places.is_trail(*lease.state.trail))
            places.drop(*lease.state.trail);
        lease.state.trail = page;
        return true;
    });
}

// Other requests stop waiting for a state at the branch: the row that passes it saves one, or no
// place is free.
void KvPool::end_branch(Lease& lease) {
    if (const auto branch = std::exchange(lease.state.branch, std::nullopt))
        cache_.places()->withdraw(branch->page, branch->announcement);
}

// The request stops running: no other request waits for its state, and its latest checkpoint
// becomes an ordinary one.
void KvPool::end_state(Lease& lease) {
    if (!has_state()) return;
    end_branch(lease);
    if (const auto trail = std::exchange(lease.state.trail, std::nullopt))
        cache_.places()->end_trail(*trail);
}

std::optional<std::string> KvPool::audit_places(std::span<const Lease* const> held) const {
    std::vector<CheckpointId> reserved;
    std::vector<PageId> trails;
    const auto add = [&](const Lease& lease) {
        for (const LeaseState::Saving& saving : lease.state.savings)
            reserved.push_back(saving.place);
        if (lease.state.trail) trails.push_back(*lease.state.trail);
    };
    for (const Lease* lease : held) add(*lease);
    for (const Lease& lease : waiting_) add(lease);
    if (!has_state()) return reserved.empty() ? std::nullopt : std::optional("of no state");
    for (std::int64_t i = 0; i < size_.num_pages; ++i) {
        const auto page = static_cast<PageId>(i);
        if (cache_.places()->of(page) && !cache_.holds(page))
            return "a checkpoint of a page without a node";
    }
    return cache_.places()->audit(reserved, trails);
}

}  // namespace pitstop::scheduler
