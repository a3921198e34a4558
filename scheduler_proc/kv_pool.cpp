#include "scheduler_proc/kv_pool.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::scheduler {
namespace {

std::int64_t held_states_max(const KvPool::Size& size) {
    if (size.num_pages == 0) return 0;
    return size.num_places.value_or(0) * size.held_pages_max / size.num_pages;
}

}  // namespace

KvPool::KvPool(const Size& size)
    : size_(size),
      pages_(size.num_pages),
      cache_(size.num_pages, size.page_size, size.num_places),
      held_(size.held_pages_max, held_states_max(size)) {
    for (std::int64_t slot = size.num_slots; slot-- > 0;) {
        free_slots_.push_back(static_cast<SlotId>(slot));
    }
}

std::optional<Lease> KvPool::start(
    PrefixCache::Match match, std::int64_t num_tokens, std::int64_t num_claimed
) {
    cache_.lock(match.pages);
    const std::int64_t num_needed =
        pages_for(num_tokens) - static_cast<std::int64_t>(match.pages.size());
    if (num_needed + num_claimed > pages_.num_free() + cache_.num_unreferenced()) {
        cache_.unlock(match.pages);
        return std::nullopt;
    }
    Lease lease{
        .slot = free_slots_.back(),
        .num_shared = match.pages.size(),
        .kv = match.epochs,
        .adapter = match.adapter};
    free_slots_.pop_back();
    for (const PageId page : match.pages) lease.page_epochs.push_back(cache_.epochs_of(page));
    lease.pages = std::move(match.pages);
    if (match.found.size() <= lease.pages.size() || cache_.places()->size() == 0) return lease;
    const PageId last = match.found.back();
    if (const auto announcement = cache_.places()->announce(last)) {
        const auto position = std::ssize(match.found) * size_.page_size;
        lease.state.branch = {position, last, *announcement};
    }
    return lease;
}

std::int64_t KvPool::grow(Lease& lease, std::int64_t num_tokens) {
    const std::size_t num_held = lease.pages.size();
    const std::int64_t num_new = pages_for(num_tokens) - static_cast<std::int64_t>(num_held);
    if (num_new <= 0) return 0;
    if (pages_.num_free() < num_new) cache_.evict(num_new - pages_.num_free(), pages_);
    if (pages_.num_free() < num_new) return num_new - pages_.num_free();
    lease.pages.resize(num_held + static_cast<std::size_t>(num_new));
    lease.page_epochs.resize(lease.pages.size());
    CHECK(pages_.allocate(std::span(lease.pages).subspan(num_held)));
    return 0;
}

void KvPool::shrink(Lease& lease, std::int64_t num_tokens) {
    std::erase_if(lease.state.savings, [&](const LeaseState::Saving& saving) {
        if (saving.position <= num_tokens) return false;
        cache_.places()->release(saving.place);
        return true;
    });
    const auto num = static_cast<std::size_t>(pages_for(num_tokens));
    if (num >= lease.pages.size()) return;
    CHECK(num >= lease.num_shared && lease.last_step <= last_done_);
    pages_.release(std::span(lease.pages).subspan(num));
    lease.pages.resize(num);
    lease.page_epochs.resize(num);
}

void KvPool::stamp(Lease& lease, std::int64_t begin, std::int64_t end, Epoch epoch) const {
    for (std::int64_t i = begin / size_.page_size; i < pages_for(end); ++i) {
        lease.page_epochs[static_cast<std::size_t>(i)].add(epoch);
    }
}

std::vector<KvPool::OwnPage> KvPool::share(
    Lease& lease, std::span<const TokenId> tokens, StepId step, Duplicates duplicates
) {
    std::vector<OwnPage> own;
    if (lease.is_private) return own;
    const auto page_size = static_cast<std::size_t>(size_.page_size);
    const std::size_t num_full = tokens.size() / page_size;
    for (; lease.num_shared < num_full; ++lease.num_shared) {
        const std::size_t i = lease.num_shared;
        PrefixCache::NewNode node{
            .page = lease.pages[i],
            .tokens = tokens.subspan(i * page_size, page_size),
            .epochs = lease.page_epochs[i],
            .step = step,
            .adapter = lease.adapter,
        };
        if (i > 0) node.parent = lease.pages[i - 1];
        const std::optional<PageId> first = cache_.find(node);
        if (!first) {
            cache_.insert(node);
            continue;
        }
        if (duplicates == Duplicates::kKeep) return own;
        cache_.lock({&*first, 1});
        if (duplicates == Duplicates::kSwap) {
            own.push_back({i, lease.pages[i]});
        } else {
            give_back({.pages = {lease.pages[i]}, .last_step = lease.last_step});
        }
        lease.pages[i] = *first;
    }
    return own;
}

void KvPool::stop_sharing(Lease& lease) {
    lease.is_private = true;
    if (has_state()) end_branch(lease);
}

void KvPool::forget(std::span<const PageId> pages) {
    for (const PageId page : pages) {
        if (cache_.holds(page)) cache_.forget(page);
    }
}

bool KvPool::has_forgotten(std::span<const PageId> pages) const {
    return std::ranges::any_of(pages, [&](PageId page) {
        return cache_.holds(page) && cache_.is_forgotten(page);
    });
}

void KvPool::give_back(Lease lease, std::optional<PrefixHolder> holder) {
    if (holder) {
        conversations_.end_turn(holder->conversation, holder->ran);
        held_.hold(*holder, std::span(lease.pages).first(lease.num_shared), cache_);
    }
    end_state(lease);
    if (lease.last_step <= last_done_) return release(lease);
    waiting_.push_back(std::move(lease));
}

bool KvPool::may_start_turn(messages::ConversationId conversation, TimePoint arrived_at) {
    const bool may_start = conversations_.may_start(conversation, arrived_at);
    for (const messages::ConversationId overdue : conversations_.take_overdue())
        held_.end(overdue, cache_);
    return may_start;
}

void KvPool::end_step(StepId step) {
    CHECK(last_done_ < step);
    last_done_ = step;
    if (has_state()) cache_.places()->end_step(step);
}

void KvPool::release_ended() {
    std::erase_if(waiting_, [&](const Lease& lease) {
        if (lease.last_step > last_done_) return false;
        release(lease);
        return true;
    });
}

void KvPool::release(const Lease& lease) {
    const std::span<const PageId> all = lease.pages;
    cache_.unlock(all.first(lease.num_shared));
    pages_.release(all.subspan(lease.num_shared));
    for (const LeaseState::Saving& saving : lease.state.savings)
        cache_.places()->release(saving.place);
    if (lease.slot) free_slots_.push_back(*lease.slot);
}

std::int64_t KvPool::num_coming() const {
    std::int64_t num = 0;
    for (const Lease& lease : waiting_) {
        num += static_cast<std::int64_t>(lease.pages.size() - lease.num_shared);
        num +=
            std::ranges::count_if(std::span(lease.pages).first(lease.num_shared), [&](PageId page) {
                return cache_.num_refs(page) == 1;
            });
    }
    return num;
}

void KvPool::report_to(messages::ReplicaStatus& status) const {
    status.pages_total = num_pages();
    status.pages_free = num_free();
    status.pages_cached = cache_.num_unreferenced();
    status.pages_held = cache_.num_holds();
    status.page_size = page_size();
    status.running_max = num_slots();
    const StatePlaces* const places = cache_.places();
    if (places == nullptr) return;
    status.checkpoints = messages::CheckpointStatus{
        .places_total = places->size(),
        .places_free = places->num_free(),
        .saved_total = places->counts().num_saved,
        .restored_total = places->counts().num_restored,
        .evicted_total = places->counts().num_evicted,
    };
}

std::optional<std::string> KvPool::audit(
    std::span<const Lease* const> held, const HeldPrefixes::Serving& serving
) const {
    if (auto problem = cache_.audit()) return "prefix cache: " + *problem;
    if (auto problem = held_.audit(serving, cache_)) return *problem;
    if (auto problem = audit_places(held)) return "checkpoints: " + *problem;
    const auto num_pages = static_cast<std::size_t>(size_.num_pages);
    std::vector<std::int32_t> num_owners(num_pages, 0);
    std::vector<std::int32_t> num_refs(num_pages, 0);
    std::vector<std::int32_t> num_slot_owners(static_cast<std::size_t>(size_.num_slots), 0);
    for (std::size_t i = 0; i < num_pages; ++i) {
        const auto page = static_cast<PageId>(i);
        num_owners[i] = (pages_.is_free(page) ? 1 : 0) + (cache_.holds(page) ? 1 : 0);
    }
    for (const Lease* lease : held) {
        if (lease->page_epochs.size() != lease->pages.size()) return "page epochs of a lease";
        if (lease->num_shared > lease->pages.size())
            return "a lease shares more pages than it holds";
    }
    const auto add = [&](const Lease& lease) {
        for (std::size_t i = 0; i < lease.pages.size(); ++i) {
            const auto page = static_cast<std::size_t>(raw(lease.pages[i]));
            ++(i < lease.num_shared ? num_refs : num_owners)[page];
        }
        if (lease.slot) ++num_slot_owners[static_cast<std::size_t>(raw(*lease.slot))];
    };
    for (const SlotId slot : free_slots_) ++num_slot_owners[static_cast<std::size_t>(raw(slot))];
    for (const Lease* lease : held) add(*lease);
    for (const Lease& lease : waiting_) add(lease);
    for (std::size_t i = 0; i < num_pages; ++i) {
        if (num_owners[i] != 1) return fmt::format("page {} has {} owners", i, num_owners[i]);
        const std::int32_t counted = cache_.num_refs(static_cast<PageId>(i));
        if (num_refs[i] != counted)
            return fmt::format(
                "page {}: the leases refer to it {} times, its count is {}", i, num_refs[i], counted
            );
    }
    for (std::size_t i = 0; i < num_slot_owners.size(); ++i) {
        if (num_slot_owners[i] != 1)
            return fmt::format("slot {} has {} owners", i, num_slot_owners[i]);
    }
    return std::nullopt;
}

}  // namespace pitstop::scheduler
