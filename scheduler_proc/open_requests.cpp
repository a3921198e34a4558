#include "scheduler_proc/open_requests.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::scheduler {

void OpenRequests::add(
    messages::TokenizedRequest&& arrived, const ModelLimits& limits, TimePoint now
) {
    const RequestKey key = arrived.key;
    const auto [place, is_new] = requests_.try_emplace(key, std::move(arrived), limits);
    CHECK(is_new);
    place->second.arrived_at = now;
    waiting_.push(place->second);
}

Request* OpenRequests::find(RequestKey key) {
    const auto found = requests_.find(key);
    return found == requests_.end() ? nullptr : &found->second;
}

std::vector<Request*> OpenRequests::all(Which which) {
    std::vector<Request*> all;
    for (auto& [key, request] : requests_) {
        if (which == Which::kAll || request.was_admitted) all.push_back(&request);
    }
    return all;
}

Request* OpenRequests::first_waiting() {
    return waiting_.empty() ? nullptr : &requests_.at(waiting_.front().key);
}

void OpenRequests::start(Request& request, Lease lease) {
    CHECK(lease.slot && !request.is_running());
    request.lease = std::move(lease);
    ++request.run;
    request.needs_setup = true;
    const auto after = std::ranges::find_if(running_, [&](const Request* other) {
        return is_elder(request, *other);
    });
    running_.insert(after, &request);
}

Lease OpenRequests::retract(Request& request) {
    if (request.progress.pending() == 0) {
        // The request's prefill was in progress and starts over: results of steps in flight belong
        // to the abandoned run.
        ++request.run;
        if (request.progress.outputs() == 0) {
            request.scores = {.start = request.scores.start};
            request.forget_routes();
        }
    }
    Lease lease = leave_run(request);
    request.progress.retract();
    ++request.num_retractions;
    waiting_.push(request);
    return lease;
}

Lease OpenRequests::remove(Request& request) {
    Lease lease;
    if (request.is_running()) {
        lease = leave_run(request);
    } else {
        waiting_.remove(request);
    }
    const RequestKey key = request.key;
    requests_.erase(key);
    return lease;
}

Lease OpenRequests::leave_run(Request& request) {
    CHECK(request.is_running());
    std::erase(running_, &request);
    return std::exchange(request.lease, {});
}

std::int64_t OpenRequests::num_started() const {
    return std::ranges::count_if(requests_, [](const auto& entry) {
        return entry.second.was_admitted;
    });
}

std::string OpenRequests::describe_page_holders() const {
    std::size_t num_pages = 0;
    for (const Request* request : running_) num_pages += request->lease.pages.size();
    return fmt::format("{} requests hold {} pages", running_.size(), num_pages);
}

std::map<messages::AdapterId, std::int64_t> OpenRequests::num_by_adapter() const {
    std::map<messages::AdapterId, std::int64_t> num;
    for (const auto& [key, request] : requests_) {
        if (const auto adapter = request.adapter_id()) ++num[*adapter];
    }
    return num;
}

std::set<messages::AdapterId> OpenRequests::started_adapters() const {
    std::set<messages::AdapterId> all;
    for (const auto& [key, request] : requests_) {
        if (request.adapter && request.was_admitted) all.insert(request.adapter->id);
    }
    return all;
}

std::optional<std::string> OpenRequests::audit(const std::map<RequestKey, std::int64_t>& num_sampled
) const {
    if (num_open() != num_running() + num_waiting()) return "a request neither runs nor waits";
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
        if (progress.known() != std::ssize(request.tokens)) return problem("has other tokens");
        const auto sampled = num_sampled.find(key);
        if (progress.pending() != (sampled == num_sampled.end() ? 0 : sampled->second))
            return problem("pending tokens do not add up");
    }
    return std::nullopt;
}

}  // namespace pitstop::scheduler
