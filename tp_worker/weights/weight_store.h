// Holds a rank's copies of the weights: the live one, which passes run under, and (staged mode) the
// other, which is being staged, or holds the version before, or nothing.
//
// A swap changes one index: views into both copies are bound when the copies are made.
//
// What is done to a whole copy is here: load, digest, release, resume. Where it lies in a GPU's
// memory that goes another way, and only this class knows which.
//
// Owns:   both arenas.
// Thread: the loop's, which alone says which copy is which. What memory a copy has is changed in
//         the background alone (background.h), whose jobs are done in the order given: a job that
//         names its copy when it is ordered finds that copy's memory as jobs before it left it.
#pragma once

#include "base/result.h"
#include "messages/weights.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/host_copy.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/bound_weights.h"
#include "tp_worker/weights/checkpoint_tensors.h"
#include "tp_worker/weights/copy_ledger.h"
#include "tp_worker/weights/gpu_writer.h"
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class WeightStore {
  public:
    // Reserves addresses for both copies and takes memory for the live one, which starts as zeros.
    // On a GPU takes what stages and digests need there, too. Both outlive it.
    static Result<WeightStore> make(const WeightLayout& layout, const Device& device);

    // Fills the live copy from a checkpoint, at start-up. Errors: as load_weights().
    Result<> load(const CheckpointTensors& tensors, const std::string& source);

    // Digests a copy that has memory; waits for it. On the CPU `host` does it, and calls `between`
    // after each piece. Errors: as digest_weights().
    Result<std::vector<messages::PartDigest>> digest(
        const std::byte* arena, kernels::Stream host, const std::function<void()>& between = [] {}
    );

    [[nodiscard]] const BoundWeights& live() const { return copies_[live_].views; }
    [[nodiscard]] std::byte* live_data() const { return copies_[live_].memory->data(); }

    // Returns the way to the GPU and back, for the background. REQUIRES: is on a GPU.
    [[nodiscard]] PinnedPieces& pieces() { return *gpu_->pieces; }
    // Returns what stages need on a GPU; null on the CPU.
    [[nodiscard]] GpuStaging* gpu_staging() { return gpu_ ? &gpu_->staging : nullptr; }

    [[nodiscard]] const Arena& live_memory() const { return *copies_[live_].memory; }
    [[nodiscard]] const Arena& other_memory() const { return *copies_[1 - live_].memory; }

    // From now on a version is staged in host memory, and a commit exchanges it with the live copy:
    // the GPU has no room for two. REQUIRES: is on a GPU, nothing is staged or retained.
    Result<> stage_on_host();
    // From now on nothing is retained: the copy that a commit or a drop leaves gives its memory
    // back (let_go_of_other()), as it is only lent. REQUIRES: is on a GPU, nothing is staged.
    void stage_on_loan() { is_on_loan_ = true; }
    [[nodiscard]] bool is_on_loan() const { return is_on_loan_; }
    // This is for the background, when a stage has been committed or has stopped writing: the copy
    // that is not live has no memory afterwards.
    void let_go_of_other();

    // Says where a stage of this mode goes then; null: it fills target().
    [[nodiscard]] HostCopy* host_target(messages::UpdateMode mode);
    // What lies in host memory comes up, and what was live down: the bytes of a commit or a
    // rollback there. The background's, while no pass runs.
    void exchange(kernels::Stream steps);

    // Returns what a stage of this mode fills: the other copy, or the live one itself. Neither has
    // to have memory that can be written: Arena::own() in the background sees to it.
    [[nodiscard]] Arena& target(messages::UpdateMode mode);

    // Says what a stage into `target` (null: host memory) goes by, for its job in the background.
    struct Ledgers {
        CopyLedger* target = nullptr;
        CopyLedger* live = nullptr;  // in place: the same one
    };
    [[nodiscard]] Ledgers ledgers(const Arena* target);

    // What was retained is about to be overwritten, or to be given back.
    void forget_retained() { has_retained_ = false; }

    // Makes the staged copy the live one; the one before is retained. Direct, and staged in host
    // memory, the live copy stays where it is.
    void commit(messages::UpdateMode mode);
    // REQUIRES: has_retained(). The retained copy becomes the live one, and the other way round.
    void roll_back();
    [[nodiscard]] bool has_retained() const { return has_retained_; }

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // per copy

    // The live copy holds nothing that could serve: none was loaded, or it was released and not
    // kept. Then a stage writes into it, and its commit makes it whole.
    void mark_lost() { is_lost_ = true; }
    [[nodiscard]] bool is_lost() const { return is_lost_; }

    // These are for the background, from here to resume(), while nothing is retained and no stage
    // is held, so that the copies stay which they are.
    //
    // Gives back the memory of both copies. With `keep` the live copy's bytes are moved to host
    // memory first. Returns the bytes that were measured to go back.
    // Errors: kResourceExhausted, there is no host memory to keep them in; nothing has changed.
    enum class Keep { kNo, kYes };
    Result<std::int64_t> release(Keep keep);
    // Takes memory for the live copy again; what was kept is put back.
    // Errors: kResourceExhausted; nothing has changed.
    Result<> resume();
    [[nodiscard]] bool is_resident() const { return live_memory().is_committed(); }
    [[nodiscard]] std::int64_t resident_bytes() const;  // physical memory of both copies
    [[nodiscard]] std::int64_t host_bytes() const;

  private:
    struct Copy {
        std::optional<Arena> memory{};
        BoundWeights views{};
        std::optional<CopyLedger> ledger{};
    };
    // What there is of weights on a GPU besides their memory.
    struct GpuSide {
        std::unique_ptr<PinnedPieces> pieces;  // which `staging` uses
        GpuWeightDigest digest;
        GpuStaging staging;
    };
    WeightStore(const WeightLayout& layout, const Device& device)
        : layout_(&layout), device_(&device), bytes_(layout.bytes()) {}

    const WeightLayout* layout_;
    const Device* device_;
    std::array<Copy, 2> copies_{};
    std::size_t live_ = 0;
    bool has_retained_ = false;
    bool is_lost_ = false;
    bool is_on_loan_ = false;
    std::optional<GpuSide> gpu_{};    // empty on the CPU
    std::optional<HostCopy> host_{};  // versions are staged here; empty: in the other copy
    std::optional<Arena> kept_{};     // the live copy's bytes while it is released
    std::int64_t bytes_;
};

}  // namespace pitstop::tp_worker
