// Orders requests for their admission: first those that ran before and were retracted, by priority,
// then by arrival; then the new ones, by priority, and of one priority as `fairness` says: clients
// in turn (base/fair_queue.h), or by arrival.
//
// The order is total, and nobody starves: of one priority, a request waits for at most one of each
// other client per request of its own client before it, whoever comes meanwhile. Higher priorities
// come before it, as long as there are any: that is what they are for. A request that is put back,
// as it waits for a prefix, keeps its turn: those behind it wait for it, and other clients'
// requests are served meanwhile.
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
        bool is_new = true;  // it was never admitted
        RequestKey key{};
    };

    // The place is given by what the request is now; while it waits, that does not change.
    void push(const Request& request) {
        if (request.was_admitted) {
            retracted_.insert({request.priority, request.key});
            return;
        }
        fresh_[request.priority].push(path_of(request), request.key);
        ++num_fresh_;
    }
    // Puts back what pop() has just taken: its client has its turn again.
    void put_back(const Request& request) {
        if (request.was_admitted) return push(request);
        fresh_[request.priority].put_back(path_of(request), request.key);
        ++num_fresh_;
    }
    // Returns false if it does not wait.
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
    // Takes front(): its client has had its turn.
    void pop() {
        if (!retracted_.empty()) {
            retracted_.erase(retracted_.begin());
            return;
        }
        fresh_.begin()->second.pop();
        taken(fresh_.begin());
    }
    // Returns who gives way where there are too many: the newest of the lowest priority's largest
    // client. REQUIRES: a new one waits.
    [[nodiscard]] RequestKey last_of_largest() const {
        return fresh_.rbegin()->second.last_of_largest();
    }

    [[nodiscard]] bool empty() const { return retracted_.empty() && num_fresh_ == 0; }
    [[nodiscard]] std::int64_t size() const { return num_fresh_ + num_retracted(); }
    // Returns whether requests that ran before wait.
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
    ByPriority fresh_{};  // none is empty
    std::int64_t num_fresh_ = 0;
};

}  // namespace pitstop::scheduler
