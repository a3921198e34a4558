// Says what one copy of a rank's weights is known to hold: of each tensor, which writing of it that
// is, and its digest. Where both copies hold the same writing, a stage need neither copy the tensor
// nor digest it: a partial update costs its own bytes, and those of the one before it.
//
// A tensor is known from when all of it is in its place and digested until somebody begins to write
// it, or its memory is mapped anew. What failed half-way, was dropped or was adopted in between is
// not known, and is copied and digested as if it were not there.
//
// Thread: the background's, as all writing to copies (weight_store.h).
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
    // Names a writing of a tensor: the copy that was written to, and a count of that copy's.
    struct Writing {
        int copy = 0;
        std::uint64_t number = 0;
        friend bool operator==(const Writing&, const Writing&) = default;
    };
    struct Entry {
        Writing writing{};
        bool is_finite = false;       // false where nobody looked
        std::vector<Digest> parts{};  // for the tensor's parts that this rank holds
    };
    enum class Values : std::uint8_t { kFinite, kNotLookedAt };

    // `copy` tells this copy's writings from the other's.
    CopyLedger(int copy, std::size_t num_tensors) : copy_(copy), entries_(num_tensors) {}

    // Forgets memory that was mapped since the last look.
    void look_at(const Arena& memory);

    // Returns null where it is not known. Tensors are named by their place in the layout.
    [[nodiscard]] const Entry* find(std::size_t tensor) const;

    // It is about to be written.
    void forget(std::size_t tensor) { entries_[tensor] = {}; }
    void forget_all() { entries_.assign(entries_.size(), {}); }
    // The two copies have exchanged what they hold.
    void swap_entries(CopyLedger& other) { std::swap(entries_, other.entries_); }
    // It was written, or looked at for the first time, and has these digests.
    void record(std::size_t tensor, Values values, std::span<const messages::PartDigest> parts);
    // It is a copy of the other copy's. REQUIRES: known there.
    void record_copy(std::size_t tensor, const CopyLedger& other);

  private:
    int copy_;
    std::uint64_t num_writings_ = 0;
    std::uint64_t mapping_ = 0;     // the memory's when it was last looked at
    std::vector<Entry> entries_{};  // by tensor; writing.number 0: not known
};

}  // namespace pitstop::tp_worker
