// Calls that read weights: a tensor, assembled from its shards, and the digests of all weights.
//
// Pure: no clock, no socket. Bounded: a tensor's bytes.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/weight_reads.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// Answers one get_weights, from the ranks of replica 0.
class TensorRead {
  public:
    explicit TensorRead(int tp) : tp_(tp) {}

    // Adds a rectangle of the tensor. Returns the whole tensor once every element has arrived;
    // returns an error if a rectangle is wrong.
    std::optional<Result<messages::WeightsReply>> handle_piece(messages::WorkerTensor piece);
    // Names the ranks that have sent nothing: "replica 0 (rank 1, ...)".
    [[nodiscard]] std::string who_is_missing() const;

  private:
    Result<> begin(const messages::WorkerTensor& piece);
    Result<> place(const messages::WorkerTensor& piece);

    int tp_;
    std::optional<messages::WeightsReply> reply_{};
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t element_bytes_ = 0;
    std::set<std::pair<std::int64_t, std::int64_t>> placed_{};  // each piece's first row and column
    std::int64_t elements_left_ = 0;
    std::set<Rank> heard_{};
};

// Makes the answer to weight_digests from the digests of every rank of every replica, ordered by
// replica, then rank. REQUIRES: each rank has computed them, and there is at least one rank.
[[nodiscard]] messages::DigestsReply merged(const std::vector<messages::WorkerDigests>& parts);

}  // namespace pitstop::tokenizer
