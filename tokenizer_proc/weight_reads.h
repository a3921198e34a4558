// Calls that read weights: a tensor put together from its shards, and digests of what is resident.
// Each rank answers for itself; these collect until all is there.
//
// Pure: no clock, no socket.
// Bounded: a tensor's bytes; the digests of all ranks of all replicas.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/weight_reads.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// One get_weights.
class TensorRead {
  public:
    // A rectangle of it. The whole tensor, once every element is there; or an error.
    std::optional<Result<messages::WeightsReply>> add(messages::WorkerTensor piece);
    // "replica 0 rank 1, ...": of `tp` ranks, those that have sent nothing.
    [[nodiscard]] std::string who_is_missing(int tp) const;

  private:
    Result<> begin(const messages::WorkerTensor& piece);
    Result<> place(const messages::WorkerTensor& piece);

    std::optional<messages::WeightsReply> reply_{};
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t element_bytes_ = 0;
    std::set<std::pair<std::int64_t, std::int64_t>> placed_{};  // first row and column
    std::int64_t elements_left_ = 0;
    std::set<Rank> heard_{};
};

// One weight_digests.
class DigestRead {
  public:
    DigestRead(int num_replicas, int tp) : num_replicas_(num_replicas), tp_(tp) {}

    // A rank's digests. The reply once all ranks of all replicas have answered.
    std::optional<messages::DigestsReply> add(messages::WorkerDigests part);
    // "replica 0 rank 1, ..."
    [[nodiscard]] std::string who_is_missing() const;

  private:
    [[nodiscard]] messages::DigestsReply merge() const;

    int num_replicas_;
    int tp_;
    std::map<std::pair<ReplicaId, Rank>, messages::WorkerDigests> parts_{};
};

}  // namespace pitstop::tokenizer
