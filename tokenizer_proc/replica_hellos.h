// The hellos of the replicas' schedulers: one from each, before the doors accept calls.
//
// Thread:  the loop thread only.
#pragma once

#include "base/result.h"
#include "messages/greeting.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tokenizer {

class ReplicaHellos {
  public:
    explicit ReplicaHellos(int num_replicas) : all_(static_cast<std::size_t>(num_replicas)) {}

    // Errors: kAlreadyExists: the replica does not exist, or has said hello before.
    Result<> add(const messages::SchedulerHello& hello);
    [[nodiscard]] bool is_complete() const {
        return std::ranges::all_of(all_, [](const auto& hello) { return hello.has_value(); });
    }
    // Returns the hello of replica 0, for the values that are equal in all hellos. REQUIRES:
    // is_complete().
    [[nodiscard]] const messages::SchedulerHello& first() const { return *all_.front(); }
    // Returns whether this replica has weights. REQUIRES: it has said hello.
    [[nodiscard]] bool has_weights(int replica) const {
        return all_[static_cast<std::size_t>(replica)]->has_weights;
    }
    // Logs which replicas have other weights than replica 0. REQUIRES: is_complete().
    void log_differences() const;
    // Returns the processes that have not said hello: "scheduler_proc[0], scheduler_proc[1]".
    [[nodiscard]] std::string missing() const;

  private:
    std::vector<std::optional<messages::SchedulerHello>> all_;  // by replica
};

}  // namespace pitstop::tokenizer
