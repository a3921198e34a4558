// These calls read weights: a tensor put together from its shards, and digests of what is resident.
//
// It is pure, without clock or socket. Bounded: a tensor's bytes.
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

// Answers one get_weights, of replica 0.
class TensorRead {
  public:
    explicit TensorRead(int tp) : tp_(tp) {}

    // Takes a rectangle of it. Returns the whole tensor once every element is there, or an error.
    std::optional<Result<messages::WeightsReply>> handle_piece(messages::WorkerTensor piece);
    // Names those that have sent nothing: "replica 0 (rank 1, ...)".
    [[nodiscard]] std::string who_is_missing() const;

  private:
    Result<> begin(const messages::WorkerTensor& piece);
    Result<> place(const messages::WorkerTensor& piece);

    int tp_;
    std::optional<messages::WeightsReply> reply_{};
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t element_bytes_ = 0;
    std::set<std::pair<std::int64_t, std::int64_t>> placed_{};  // first row and column
    std::int64_t elements_left_ = 0;
    std::set<Rank> heard_{};
};

// Makes the answer to a weight_digests out of what every rank of every replica digested, in the
// order of replicas, then ranks. REQUIRES: each has digested, and there is one.
[[nodiscard]] messages::DigestsReply merged(const std::vector<messages::WorkerDigests>& parts);

}  // namespace pitstop::tokenizer
