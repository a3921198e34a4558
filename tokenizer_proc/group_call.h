// One init_group or destroy_group: every rank of every replica answers for itself; this collects
// until all have.
//
// Pure: no clock, no socket. Bounded: an answer per rank.
#pragma once

#include "base/ids.h"
#include "messages/groups.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace pitstop::tokenizer {

class GroupCall {
  public:
    GroupCall(int num_replicas, int tp) : num_replicas_(num_replicas), tp_(tp) {}

    // A rank's answer. The reply once all ranks of all replicas have answered.
    std::optional<messages::GroupReply> add(messages::WorkerGrouped part);
    // "replica 0 rank 1, ..."
    [[nodiscard]] std::string who_is_missing() const;

  private:
    int num_replicas_;
    int tp_;
    std::map<std::pair<ReplicaId, Rank>, messages::WorkerGrouped> parts_{};
};

}  // namespace pitstop::tokenizer
