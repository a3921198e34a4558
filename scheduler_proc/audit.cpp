// Checks the invariants of what runs from outside, for tests and for the simulator after every
// event. Nothing here is needed to run.
#include "scheduler_proc/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace pitstop::scheduler {

std::optional<std::string> Runner::audit(Epoch serving) const {
    std::vector<const Lease*> held;
    for (const Request* request : running_) held.push_back(&request->lease);
    if (auto problem = pool_.audit(held)) return problem;
    if (auto problem = steps_.audit(serving)) return problem;
    return audit_requests();
}

std::optional<std::string> Runner::audit_requests() const {
    // The tokens that open requests wait for are those of rows in flight.
    std::map<RequestKey, std::int64_t> num_pending;
    for (const InFlightStep& step : steps_.all()) {
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
        if (waits == request.is_running()) return problem("runs and waits, or neither");
        if (waits && !request.lease.pages.empty()) return problem("waits and holds pages");
        const Progress& progress = request.progress;
        if (const auto what = progress.problem()) return problem(*what);
        if (progress.known() != std::ssize(request.tokens)) return problem("knows other tokens");
        if (progress.pending() != num_pending[key]) return problem("pending tokens do not add up");
        if (!request.is_running()) continue;
        const Lease& lease = request.lease;
        if (lease.page_epochs.size() != lease.pages.size()) return problem("page epochs");
        if (lease.num_shared > lease.pages.size()) return problem("shares more than it holds");
        if (pool_.pages_for(progress.planned()) > std::ssize(lease.pages))
            return problem("positions without pages");
    }
    return std::nullopt;
}

}  // namespace pitstop::scheduler
