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
    void push(const Request& request) {
        if (places_.insert(place_of(request)).second && request.was_admitted) ++num_retracted_;
    }
    void remove(const Request& request) {
        if (places_.erase(place_of(request)) > 0 && request.was_admitted) --num_retracted_;
    }
    [[nodiscard]] bool contains(const Request& request) const {
        return places_.contains(place_of(request));
    }

    [[nodiscard]] bool empty() const { return places_.empty(); }
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
    // Whether a request waits that ran before.
    [[nodiscard]] bool has_retracted() const { return !empty() && !places_.begin()->is_new; }

    // How many.
    [[nodiscard]] std::int64_t num_retracted() const { return num_retracted_; }

    [[nodiscard]] auto begin() const { return places_.begin(); }
    [[nodiscard]] auto end() const { return places_.end(); }

  private:
    static Place place_of(const Request& request) {
        return {!request.was_admitted, request.priority, request.key};
    }
    std::set<Place> places_{};
    std::int64_t num_retracted_ = 0;
};

}  // namespace pitstop::scheduler
