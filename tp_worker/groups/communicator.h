// This is how the ranks of one replica speak to each other during a forward pass. Every rank calls
// the same operations in the same order with the same sizes. Sums run in rank order, so that a
// result has the same bits on every rank and in every run.
//
// Tensors (all_reduce_sum, gather_columns, all_gather_records) are in the memory of what the rank
// computes on; the others' bytes are in the host's. On a GPU an operation on tensors is enqueued on
// the step's stream and waits for nobody; whether it came to its end says check(), when the stream
// was waited for.
//
// Thread: one per rank. Waits: every other operation, for its peers, up to the communicator's
//         deadline.
// Errors: kUnavailable (a peer is gone; names the rank) and kDeadlineExceeded (names the ranks that
//         did not come). Either leaves the communicator broken: the worker must end.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "base/view.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace pitstop::tp_worker {

class Communicator {
  public:
    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    virtual ~Communicator() = default;

    [[nodiscard]] virtual Rank rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    // Says how many of them are on this rank's machine: all, unless the replica spans several.
    [[nodiscard]] virtual int num_on_machine() const { return size(); }

    // data[i] becomes the sum over the ranks, in rank order, in fp32.
    virtual Result<> all_reduce_sum(std::span<float> data) = 0;

    // Rank r's `part` [n, C] becomes columns r * C .. of rank 0's `whole` [n, V], as far as V goes.
    // On other ranks `whole` is not used. REQUIRES: C * size >= V; rows of `part` are contiguous.
    virtual Result<> gather_columns(View2<const float> part, View2<float> whole) = 0;

    // Sends rank 0's bytes to all.
    virtual Result<> broadcast(std::span<std::byte> data) = 0;

    // Rank r's `mine` becomes the r-th of the `size` parts of `all`, on every rank.
    virtual Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
    // Does the same with what ops wrote and ops will read. REQUIRES: a multiple of 16 bytes,
    // 16-byte aligned.
    virtual Result<> all_gather_records(std::span<const std::byte> mine, std::span<std::byte> all) {
        return all_gather(mine, all);
    }

    virtual Result<> barrier() = 0;
    // Does the same, and waits for no longer than `limit`.
    virtual Result<> barrier_within(Duration limit) = 0;

    // Says what became of the operations on tensors so far. REQUIRES: their stream was waited for.
    virtual Result<> check() { return Ok{}; }

    // Says whether operations on tensors may become part of a graph.
    [[nodiscard]] virtual bool may_be_captured() const { return true; }

    // These stand around what a step enqueues, its sums being of so many bytes each, where it is no
    // graph: there may be a way for large ones (rank_nccl.h) that the ranks take together. The
    // second waits for sums that went by it.
    virtual Result<> begin_sums(std::int64_t /*bytes*/) { return Ok{}; }
    virtual Result<> finish_sums() { return Ok{}; }

    // Tells whether sums of so many bytes go the same way with begin_sums() and without: then a
    // step of them may be captured. The same on every rank.
    [[nodiscard]] virtual bool may_capture_sum(std::int64_t /*bytes*/) const { return true; }

    // Says in words how tensors are summed on GPUs; empty elsewhere.
    [[nodiscard]] virtual std::string describe() const { return {}; }
};

// Says where floats of one rank's part [n, cols] belong in the whole of gather_columns().
struct ColumnPiece {
    int rank = 0;
    std::int64_t cols = 0;   // columns of each rank's part
    std::int64_t begin = 0;  // [begin, end) of its floats, row after row: a piece starts anywhere
    std::int64_t end = 0;
    const float* data = nullptr;  // those floats
};
// Copies them there, as far as the whole's columns go.
void paste_columns(const ColumnPiece& piece, View2<float> whole);

// Returns the lowest rank on which it does not hold; none where it holds on all. Every rank calls
// it.
Result<std::optional<Rank>> find_rank_without(bool holds, Communicator& communicator);

// Makes the communicator of one rank alone, which has nothing to wait for.
[[nodiscard]] std::unique_ptr<Communicator> make_solo_communicator();

}  // namespace pitstop::tp_worker
