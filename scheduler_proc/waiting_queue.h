// The order in which requests are admitted: first those that ran before and were retracted, then by
// priority, then by arrival.
//
// Thread: the loop thread only.
#pragma once

#include "base/ids.h"
#include "scheduler_proc/request.h"

#include <cstdint>
#include <set>

namespace pitstop::scheduler {

class WaitingQueue {
  public:
    struct Place {
        bool is_new = true;  // never admitted
        std::int64_t priority = 0;
        RequestKey key{};

        friend bool operator<(const Place& a, const Place& b) {
            if (a.is_new != b.is_new) return b.is_new;
            if (a.priority != b.priority) return a.priority > b.priority;
            return a.key < b.key;
        }
    };

    // The place is given by what the request is now; while it waits, that does not change.
    void push(const Request& request) { places_.insert(place_of(request)); }
    void remove(const Request& request) { places_.erase(place_of(request)); }
    [[nodiscard]] bool contains(const Request& request) const {
        return places_.contains(place_of(request));
    }

    [[nodiscard]] bool empty() const { return places_.empty(); }
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
    // Whether a request waits that ran before.
    [[nodiscard]] bool has_retracted() const { return !empty() && !places_.begin()->is_new; }

    [[nodiscard]] auto begin() const { return places_.begin(); }
    [[nodiscard]] auto end() const { return places_.end(); }

  private:
    static Place place_of(const Request& request) {
        return {!request.was_admitted, request.priority, request.key};
    }
    std::set<Place> places_{};
};

}  // namespace pitstop::scheduler
