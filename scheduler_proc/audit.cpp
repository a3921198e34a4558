// Checks the invariants of what runs from outside, for tests and for the simulator after every
// event. Nothing here is needed to run.
#include "scheduler_proc/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace pitstop::scheduler {

std::optional<std::string> Runner::audit(Epoch serving) const {
    if (auto problem = cache_.audit()) return "prefix cache: " + *problem;
    if (auto problem = audit_ownership()) return problem;
    if (auto problem = audit_steps(serving)) return problem;
    return audit_requests();
}

// Every page and slot has one owner, and every node of the cache the holders it counts.
std::optional<std::string> Runner::audit_ownership() const {
    // Every page is free, a node of the cache, or private to one request or lease.
    const auto num_pages = static_cast<std::size_t>(pages_.num_pages());
    std::vector<std::int32_t> num_owners(num_pages, 0);
    std::vector<std::int32_t> num_refs(num_pages, 0);
    std::vector<std::int32_t> num_slot_owners(static_cast<std::size_t>(num_slots_), 0);
    for (std::size_t i = 0; i < num_pages; ++i) {
        const auto page = static_cast<PageId>(i);
        num_owners[i] = (pages_.is_free(page) ? 1 : 0) + (cache_.holds(page) ? 1 : 0);
    }
    const auto add = [&](std::span<const PageId> pages, std::size_t num_shared) {
        for (std::size_t i = 0; i < pages.size(); ++i) {
            const auto page = static_cast<std::size_t>(raw(pages[i]));
            ++(i < num_shared ? num_refs : num_owners)[page];
        }
    };
    for (const SlotId slot : free_slots_) ++num_slot_owners[static_cast<std::size_t>(raw(slot))];
    for (const Request* request : running_) {
        add(request->pages, request->num_shared);
        ++num_slot_owners[static_cast<std::size_t>(raw(request->slot))];
    }
    for (const InFlightStep& step : in_flight_) {
        for (const Lease& lease : step.leases) {
            add(lease.pages, lease.num_shared);
            if (lease.slot) ++num_slot_owners[static_cast<std::size_t>(raw(*lease.slot))];
        }
    }
    for (std::size_t i = 0; i < num_pages; ++i) {
        if (num_owners[i] != 1) return fmt::format("page {} has {} owners", i, num_owners[i]);
        const std::int32_t held = cache_.num_refs(static_cast<PageId>(i));
        if (num_refs[i] != held)
            return fmt::format("page {}: {} hold it, {} references", i, num_refs[i], held);
    }
    for (std::size_t i = 0; i < num_slot_owners.size(); ++i) {
        if (num_slot_owners[i] != 1)
            return fmt::format("slot {} has {} owners", i, num_slot_owners[i]);
    }
    return std::nullopt;
}

// Steps in flight follow one another, and run under what serves or an older version.
std::optional<std::string> Runner::audit_steps(Epoch serving) const {
    for (std::size_t i = 0; i < in_flight_.size(); ++i) {
        const InFlightStep& step = in_flight_[i];
        const std::size_t num_after = in_flight_.size() - i;
        if (raw(step.step) + static_cast<std::int64_t>(num_after) != raw(next_step_))
            return fmt::format("step {} is out of order", raw(step.step));
        if (step.version.epoch > serving)
            return fmt::format("step {} runs under a version to come", raw(step.step));
    }
    if (in_flight_.size() > kStepsInFlightMax) return "too many steps in flight";
    return std::nullopt;
}

std::optional<std::string> Runner::audit_requests() const {
    // The tokens that open requests wait for are those of rows in flight.
    std::map<RequestKey, std::int64_t> num_pending;
    for (const InFlightStep& step : in_flight_) {
        for (const StepRow& row : step.rows) num_pending[row.key] += row.samples ? 1 : 0;
    }
    if (requests_.size() != running_.size() + static_cast<std::size_t>(waiting_.size()))
        return "a request neither runs nor waits";
    if (!std::ranges::is_sorted(running_, [](const Request* a, const Request* b) {
            return is_elder(*a, *b);
        }))
        return "running requests are not in order";
    for (const auto& [key, request] : requests_) {
        const auto problem = [number = raw(key)](std::string_view what) {
            return fmt::format("request {}: {}", number, what);
        };
        const bool waits = waiting_.contains(request);
        if (waits == request.is_running) return problem("runs and waits, or neither");
        if (waits && !request.pages.empty()) return problem("waits and holds pages");
        const Progress& progress = request.progress;
        if (const auto what = progress.problem()) return problem(*what);
        if (progress.known() != std::ssize(request.tokens)) return problem("knows other tokens");
        if (progress.pending() != num_pending[key]) return problem("pending tokens do not add up");
        if (!request.is_running) continue;
        if (request.page_epochs.size() != request.pages.size()) return problem("page epochs");
        if (request.num_shared > request.pages.size()) return problem("shares more than it holds");
        if (pages_for(progress.planned()) > std::ssize(request.pages))
            return problem("positions without pages");
    }
    return std::nullopt;
}

}  // namespace pitstop::scheduler
