// Holds every open request: those that run, and those that wait to, new or retracted.
//
// A request comes to wait, starts with a lease of the pool, may be retracted to the head of the
// queue, and is removed from either place. Whoever takes it from its run gets its lease.
//
// Owns:    every request from its arrival to its last chunk, at one address.
// Thread:  the loop thread only.
// Bounded: by whoever adds and starts them.
#pragma once

#include "base/ids.h"
#include "scheduler_proc/kv_pool.h"
#include "scheduler_proc/request.h"
#include "scheduler_proc/waiting_queue.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class OpenRequests {
  public:
    explicit OpenRequests(Fairness fairness) : waiting_(fairness) {}

    // It waits. REQUIRES: its key is new; !problem_of(arrived, limits).
    void add(messages::TokenizedRequest&& arrived, const ModelLimits& limits, TimePoint now);
    [[nodiscard]] Request* find(RequestKey key);  // null: it is not open
    // Returns all that ran before, or all, in the order of their keys.
    enum class Which { kStarted, kAll };
    [[nodiscard]] std::vector<Request*> all(Which which);

    // ---- the queue ----
    // Returns who is first; null: nobody waits.
    [[nodiscard]] Request* first_waiting();
    void pop_waiting() { waiting_.pop(); }  // takes it out, for put_back() or start()
    void put_back(const Request& request) { waiting_.put_back(request); }
    // Returns who gives way where too many wait. REQUIRES: a new one waits.
    [[nodiscard]] Request& last_of_largest() { return requests_.at(waiting_.last_of_largest()); }

    // ---- moves ----
    // REQUIRES: it was taken out of the queue; the lease has a slot.
    void start(Request& request, Lease lease);
    // Puts what runs back to the head of the queue: the tokens stay, and those that steps in flight
    // sample for it still count. Returns what it held.
    [[nodiscard]] Lease retract(Request& request);
    // Returns what it held: nothing, if it waited.
    [[nodiscard]] Lease remove(Request& request);

    // Eldest first; the youngest gives way under pressure.
    [[nodiscard]] const std::vector<Request*>& running() const { return running_; }
    [[nodiscard]] std::int64_t num_running() const { return std::ssize(running_); }
    [[nodiscard]] std::int64_t num_waiting() const { return waiting_.size(); }
    [[nodiscard]] std::int64_t num_retracted() const { return waiting_.num_retracted(); }
    [[nodiscard]] std::int64_t num_open() const { return std::ssize(requests_); }
    [[nodiscard]] std::int64_t num_started() const;  // open, and ran before
    // Returns whether a request that ran before is still to run out.
    [[nodiscard]] bool has_started() const { return !running_.empty() || waiting_.has_retracted(); }
    [[nodiscard]] bool has(RequestKey key) const { return requests_.contains(key); }
    // Says in an error what is in use: "2 requests hold 5 pages".
    [[nodiscard]] std::string describe_page_holders() const;

    // Returns what is wrong if steps in flight sample so many tokens of each, or nothing.
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
