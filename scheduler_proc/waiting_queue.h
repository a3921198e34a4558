// The order of admission. First come requests that have run and were retracted, by priority, then
// by arrival. Then come new requests, by priority. Within a priority, `fairness` decides: clients
// take turns (base/fair_queue.h), or requests go by arrival.
//
// The order is total, and no request starves. Within a priority, a request waits for all earlier
// requests of its client. For each of these, it also waits for at most one request of each other
// client, whatever arrives meanwhile. Higher priorities always come first, by intent. A request
// that is put back because it waits for a prefix or for older conversations keeps its turn. Later
// requests of its client wait for it, while other clients are served.
//
// Thread: the loop thread only.
#pragma once

#include "base/fair_queue.h"
#include "base/ids.h"
#include "scheduler_proc/request.h"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class WaitingQueue {
  public:
    explicit WaitingQueue(Fairness fairness = Fairness::kFair) : fairness_(fairness) {}

    struct Place {
        bool is_new = true;  // never admitted before
        RequestKey key{};
    };

    // The request's state determines its place; the state must not change while the request waits.
    void push(const Request& request) {
        if (request.was_admitted) {
            retracted_.insert({request.priority, request.key});
            return;
        }
        fresh_[request.priority].push(path_of(request), request.key);
        ++num_fresh_;
    }
    // Puts back the request that pop() has just removed: its client keeps its turn.
    void put_back(const Request& request) {
        if (request.was_admitted) return push(request);
        fresh_[request.priority].put_back(path_of(request), request.key);
        ++num_fresh_;
    }
    // Returns false if the request does not wait.
    bool remove(const Request& request) {
        if (request.was_admitted) return retracted_.erase({request.priority, request.key}) > 0;
        const auto of_priority = fresh_.find(request.priority);
        if (of_priority == fresh_.end()) return false;
        if (!of_priority->second.erase(path_of(request), request.key)) return false;
        taken(of_priority);
        return true;
    }
    [[nodiscard]] bool contains(const Request& request) const {
        if (request.was_admitted) return retracted_.contains({request.priority, request.key});
        const auto of_priority = fresh_.find(request.priority);
        return of_priority != fresh_.end() &&
               of_priority->second.contains(path_of(request), request.key);
    }

    // REQUIRES: !empty().
    [[nodiscard]] Place front() const {
        if (!retracted_.empty()) return {.is_new = false, .key = retracted_.begin()->key};
        return {.is_new = true, .key = fresh_.begin()->second.front()};
    }
    // Removes front(): its client has had its turn.
    void pop() {
        if (!retracted_.empty()) {
            retracted_.erase(retracted_.begin());
            return;
        }
        fresh_.begin()->second.pop();
        taken(fresh_.begin());
    }
    // Returns the request to drop if too many wait: the newest request of the largest client in the
    // lowest priority. REQUIRES: a new request waits.
    [[nodiscard]] RequestKey last_of_largest() const {
        return fresh_.rbegin()->second.last_of_largest();
    }

    [[nodiscard]] bool empty() const { return retracted_.empty() && num_fresh_ == 0; }
    [[nodiscard]] std::int64_t size() const { return num_fresh_ + num_retracted(); }
    // Returns whether requests that have run wait.
    [[nodiscard]] bool has_retracted() const { return !retracted_.empty(); }
    [[nodiscard]] std::int64_t num_retracted() const {
        return static_cast<std::int64_t>(retracted_.size());
    }

  private:
    struct Retracted {
        std::int64_t priority = 0;
        RequestKey key{};
        friend bool operator<(const Retracted& a, const Retracted& b) {
            return a.priority != b.priority ? a.priority > b.priority : a.key < b.key;
        }
    };
    using ByPriority = std::map<std::int64_t, FairQueue<RequestKey>, std::greater<>>;

    [[nodiscard]] FairQueue<RequestKey>::Path path_of(const Request& request) const {
        if (fairness_ == Fairness::kFcfs) return {};
        return request.client;
    }
    void taken(ByPriority::iterator of_priority) {
        --num_fresh_;
        if (of_priority->second.empty()) fresh_.erase(of_priority);
    }

    Fairness fairness_;
    std::set<Retracted> retracted_{};
    ByPriority fresh_{};  // no empty queues
    std::int64_t num_fresh_ = 0;
};

}  // namespace pitstop::scheduler
