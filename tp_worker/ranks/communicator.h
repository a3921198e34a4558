// Communication between the ranks of one replica during a forward pass. Every rank calls the same
// operations in the same order with the same sizes. Sums run in rank order, so that a result has
// the same bits on every rank and in every run.
//
// Tensors (all_reduce_sum, gather_columns, all_gather_records) are in the memory of the device that
// the rank computes on; other bytes are in the host's. On a GPU an operation on tensors is enqueued
// on the step's stream and waits for nothing; after a wait for the stream, check() returns whether
// it succeeded.
//
// Thread: one per rank. Waits: every other operation, for its peers, up to the communicator's
//         deadline.
// Errors: kUnavailable (a peer is gone; names the rank) and kDeadlineExceeded (names the missing
//         ranks). Either leaves the communicator broken: the worker must end.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "base/view.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace pitstop::tp_worker {

class Communicator {
  public:
    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    virtual ~Communicator() = default;

    [[nodiscard]] virtual Rank rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    // Returns how many ranks are on this rank's machine: all, unless the replica spans several.
    [[nodiscard]] virtual int num_on_machine() const { return size(); }

    // data[i] becomes the sum over the ranks, in rank order, in fp32.
    virtual Result<> all_reduce_sum(std::span<float> data) = 0;

    // Writes rank r's `part` [n, C] to columns r * C .. of rank 0's `whole` [n, V], up to column V.
    // On other ranks `whole` is not used. REQUIRES: C * size >= V; rows of `part` are contiguous.
    virtual Result<> gather_columns(View2<const float> part, View2<float> whole) = 0;

    // Sends rank 0's bytes to all.
    virtual Result<> broadcast(std::span<std::byte> data) = 0;

    // Rank r's `mine` becomes the r-th of the `size` parts of `all`, on every rank.
    virtual Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
    // Does what all_gather() does, for bytes that ops wrote and ops will read. REQUIRES: a multiple
    // of 16 bytes, 16-byte aligned.
    virtual Result<> all_gather_records(std::span<const std::byte> mine, std::span<std::byte> all) {
        return all_gather(mine, all);
    }

    virtual Result<> barrier() = 0;
    // Waits at the barrier, but no longer than `limit`.
    virtual Result<> barrier_within(Duration limit) = 0;

    // Returns the outcome of the operations on tensors so far. REQUIRES: their stream
    // was waited for.
    virtual Result<> check() { return Ok{}; }

    // Returns whether operations on tensors may become part of a graph.
    [[nodiscard]] virtual bool may_be_captured() const { return true; }

    // Called before and after a step that is not a graph enqueues its work. Each of its sums
    // has `bytes` bytes. Large sums may use NCCL (rank_nccl.h) if all ranks choose it together.
    // finish_sums() waits for the sums that use NCCL.
    virtual Result<> begin_sums(std::int64_t /*bytes*/) { return Ok{}; }
    virtual Result<> finish_sums() { return Ok{}; }

    // Returns whether sums of this many bytes are computed alike with and without begin_sums():
    // then a step with such sums may be captured. The same on every rank.
    [[nodiscard]] virtual bool may_capture_sum(std::int64_t /*bytes*/) const { return true; }

    // Describes how tensors are summed on GPUs; empty elsewhere.
    [[nodiscard]] virtual std::string describe() const { return {}; }

    // Sets a function that the computing thread calls after the sum of each block of a pass. An
    // error of the function ends the pass.
    void set_between(std::function<Result<>()> between) { between_ = std::move(between); }
    [[nodiscard]] Result<> between() const { return between_ ? between_() : Ok{}; }

  private:
    std::function<Result<>()> between_{};
};

// Some floats of one rank's part [n, cols], for gather_columns().
struct ColumnPiece {
    int rank = 0;
    std::int64_t cols = 0;   // columns of each rank's part
    std::int64_t begin = 0;  // [begin, end) of its floats, row by row: a piece may start anywhere
    std::int64_t end = 0;
    const float* data = nullptr;  // the floats [begin, end)
};
// Copies the floats to their place in `whole`, without columns that `whole` does not have.
void paste_columns(const ColumnPiece& piece, View2<float> whole);

// Returns the lowest rank on which the condition is false; nothing if it is true on all. Every rank
// calls it.
Result<std::optional<Rank>> find_rank_without(bool holds, Communicator& communicator);

// Makes the communicator of a single rank, which has nothing to wait for.
[[nodiscard]] std::unique_ptr<Communicator> make_solo_communicator();

}  // namespace pitstop::tp_worker
