// All open requests: running ones and waiting ones. A waiting request is new or was retracted.
//
// A request first waits. It starts with a lease of the pool, may be retracted to the head of the
// queue, and is removed from either place. When its run ends, the lease goes back to the pool.
//
// Owns:    every request from its arrival to its last chunk, at a constant address.
// Thread:  the loop thread only.
// Bounded: by the caller, who adds and starts requests.
#pragma once

#include "base/ids.h"
#include "scheduler_proc/kv_pool.h"
#include "scheduler_proc/request.h"
#include "scheduler_proc/waiting_queue.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class OpenRequests {
  public:
    explicit OpenRequests(Fairness fairness) : waiting_(fairness) {}

    // Adds a waiting request. REQUIRES: its key is new; !problem_of(arrived, limits).
    void add(messages::TokenizedRequest&& arrived, const ModelLimits& limits, TimePoint now);
    [[nodiscard]] Request* find(RequestKey key);  // null: not open
    // Returns all requests, or those that have run (kStarted), in the order of their keys.
    enum class Which { kStarted, kAll };
    [[nodiscard]] std::vector<Request*> all(Which which);

    // ---- the queue ----
    // Returns the first request of the queue; null if the queue is empty.
    [[nodiscard]] Request* first_waiting();
    void pop_waiting() { waiting_.pop(); }  // removes the first, for put_back() or start()
    void put_back(const Request& request) { waiting_.put_back(request); }
    // Returns the request to drop if too many wait. REQUIRES: a new request waits.
    [[nodiscard]] Request& last_of_largest() { return requests_.at(waiting_.last_of_largest()); }

    // ---- moves ----
    // REQUIRES: the request was taken out of the queue; the lease has a slot.
    void start(Request& request, Lease lease);
    // Puts a running request back to the head of the queue. Its tokens stay, and tokens that steps
    // in flight sample for it still count. Returns its lease.
    [[nodiscard]] Lease retract(Request& request);
    // Removes the request. Returns its lease, or an empty one if it waited.
    [[nodiscard]] Lease remove(Request& request);

    // The running requests, oldest first; under pressure the youngest is retracted.
    [[nodiscard]] const std::vector<Request*>& running() const { return running_; }
    [[nodiscard]] std::int64_t num_running() const { return std::ssize(running_); }
    [[nodiscard]] std::int64_t num_waiting() const { return waiting_.size(); }
    [[nodiscard]] std::int64_t num_retracted() const { return waiting_.num_retracted(); }
    [[nodiscard]] std::int64_t num_open() const { return std::ssize(requests_); }
    [[nodiscard]] std::int64_t num_started() const;  // open requests that ran before
    // Returns whether a request that has run is still open.
    [[nodiscard]] bool has_started() const { return !running_.empty() || waiting_.has_retracted(); }
    [[nodiscard]] bool has(RequestKey key) const { return requests_.contains(key); }
    // Returns which requests hold pages, for an error: "2 requests hold 5 pages".
    [[nodiscard]] std::string describe_page_holders() const;

    // Returns the number of open requests of each adapter version.
    [[nodiscard]] std::map<messages::AdapterId, std::int64_t> num_by_adapter() const;
    // Returns the adapter versions of requests that run or have run.
    [[nodiscard]] std::set<messages::AdapterId> started_adapters() const;

    // Returns what is wrong, or nothing; steps in flight sample `num_sampled` tokens per request.
    [[nodiscard]] std::optional<std::string> audit(
        const std::map<RequestKey, std::int64_t>& num_sampled
    ) const;

  private:
    [[nodiscard]] Lease leave_run(Request& request);

    std::map<RequestKey, Request> requests_{};
    WaitingQueue waiting_;
    std::vector<Request*> running_{};
};

}  // namespace pitstop::scheduler
