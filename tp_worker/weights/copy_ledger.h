// Records which tensors of one copy of a rank's weights are known: for each, the write that its
// contents come from, and their digest. If both copies contain the same write of a tensor, a stage
// need neither copy nor digest the tensor. So a partial update costs its own bytes and those of the
// update before.
//
// A tensor becomes known when all of it is in place and digested. The tensor stays known until a
// write to it begins, or its memory is mapped anew. A tensor whose write failed half-way, was
// dropped or was replaced by an adopted shard is unknown: the next stage copies and digests it.
//
// Thread: the background's, like all writing to copies (weight_store.h).
#pragma once

#include "messages/version_digest.h"
#include "tp_worker/device/arena.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

class CopyLedger {
  public:
    // Identifies a write of a tensor: the copy, and the number of the write to that copy.
    struct Writing {
        int copy = 0;
        std::uint64_t number = 0;
        friend bool operator==(const Writing&, const Writing&) = default;
    };
    struct Entry {
        Writing writing{};
        bool is_finite = false;       // false if unchecked
        std::vector<Digest> parts{};  // for the parts of the tensor that this rank has
    };
    enum class Values : std::uint8_t { kFinite, kNotLookedAt };

    // `copy` distinguishes this copy's writes from the other's.
    CopyLedger(int copy, std::size_t num_tensors) : copy_(copy), entries_(num_tensors) {}

    // Forgets the entries of memory that was mapped anew since the last call.
    void look_at(const Arena& memory);

    // Returns null if the tensor is unknown. `tensor` is its index in the layout.
    [[nodiscard]] const Entry* find(std::size_t tensor) const;

    // Called before the tensor is written.
    void forget(std::size_t tensor) { entries_[tensor] = {}; }
    void forget_all() { entries_.assign(entries_.size(), {}); }
    // Called when the two copies have exchanged their contents.
    void swap_entries(CopyLedger& other) { std::swap(entries_, other.entries_); }
    // Records the digests of a tensor that was written, or digested for the first time.
    void record(std::size_t tensor, Values values, std::span<const messages::PartDigest> parts);
    // Records a copy of the other copy's tensor. REQUIRES: the other ledger knows the tensor.
    void record_copy(std::size_t tensor, const CopyLedger& other);

  private:
    int copy_;
    std::uint64_t num_writings_ = 0;
    std::uint64_t mapping_ = 0;     // the memory's mapping at the last call of look_at()
    std::vector<Entry> entries_{};  // by tensor; writing.number 0: unknown
};

}  // namespace pitstop::tp_worker
