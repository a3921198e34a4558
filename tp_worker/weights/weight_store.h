// A rank's copies of the weights: the live one, which passes use, and (in staged mode) the other
// copy, which is being staged, has the previous version, or is empty.
//
// A swap changes one index: views into both copies are bound when the copies are made.
//
// Operations on a whole copy are here: load, digest, release, resume. For copies in GPU memory they
// differ; only this class knows the difference.
//
// Owns:   both arenas.
// Thread: the loop's, which alone knows which copy is which. Only the background changes a copy's
// memory (background.h), and its jobs run in the order given: a job that was ordered for a copy
// finds that copy's memory as the earlier jobs left it.
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
    // Reserves addresses for both copies and allocates memory for the live one, initially zeros. On
    // a GPU also allocates the memory of stages and digests. Both arguments must outlive the store.
    static Result<WeightStore> make(const WeightLayout& layout, const Device& device);

    // Fills the live copy from a checkpoint, at start-up. Errors: as load_weights().
    Result<> load(const CheckpointTensors& tensors, const std::string& source);

    // Digests a copy that has memory, and waits for the result. On the CPU `host` does it, and
    // calls `between` after each piece. Errors: as digest_weights().
    Result<std::vector<messages::PartDigest>> digest(
        const std::byte* arena, kernels::Stream host, const std::function<void()>& between = [] {}
    );

    [[nodiscard]] const BoundWeights& live() const { return copies_[live_].views; }
    [[nodiscard]] std::byte* live_data() const { return copies_[live_].memory->data(); }

    // Returns the page-locked pieces for copies from and to the GPU, for the background. REQUIRES:
    // the store is on a GPU.
    [[nodiscard]] PinnedPieces& pieces() { return *gpu_->pieces; }
    // Returns the memory of stages on a GPU; null on the CPU.
    [[nodiscard]] GpuStaging* gpu_staging() { return gpu_ ? &gpu_->staging : nullptr; }

    [[nodiscard]] const Arena& live_memory() const { return *copies_[live_].memory; }
    [[nodiscard]] const Arena& other_memory() const { return *copies_[1 - live_].memory; }

    // From now on versions are staged in host memory, and a commit exchanges them with the live
    // copy, because the GPU has no room for two. REQUIRES: the store is on a GPU; nothing is staged
    // or retained.
    Result<> stage_on_host();
    // From now on no version is retained: the memory of the other copy is only lent, so after a
    // commit or a drop let_go_of_other() frees it. REQUIRES: on a GPU; nothing is staged.
    void stage_on_loan() { is_on_loan_ = true; }
    [[nodiscard]] bool is_on_loan() const { return is_on_loan_; }
    // Frees the memory of the copy that is not live. Called in the background after a commit, or
    // when a stage has stopped writing.
    void let_go_of_other();

    // Returns the host memory that a stage of this mode fills; null: it fills target().
    [[nodiscard]] HostCopy* host_target(messages::UpdateMode mode);
    // Swaps the staged version in host memory with the live copy on the GPU (commit and rollback in
    // host mode). Background thread, while no pass runs.
    void exchange(kernels::Stream steps);

    // Returns the copy that a stage of this mode fills: the other copy, or the live one. The memory
    // may be missing or not writable; the background calls Arena::renew() first.
    [[nodiscard]] Arena& target(messages::UpdateMode mode);

    // Returns the ledgers for a stage into `target` (null: host memory), for its job in
    // the background.
    struct Ledgers {
        CopyLedger* target = nullptr;
        CopyLedger* live = nullptr;  // equals `target` if a stage writes directly
    };
    [[nodiscard]] Ledgers ledgers(const Arena* target);

    // Called before the retained version is overwritten or freed.
    void forget_retained() { has_retained_ = false; }

    // Makes the staged copy the live one, and retains the previous one. In direct mode, and with
    // staging in host memory, the live copy keeps its address.
    void commit(messages::UpdateMode mode);
    // Makes the retained copy the live one, and retains the other. REQUIRES: has_retained().
    void roll_back();
    [[nodiscard]] bool has_retained() const { return has_retained_; }

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // per copy

    // Records that the live copy has no weights that could serve: none were loaded, or they were
    // released and not kept. Then a stage writes into the live copy, and its commit makes it valid.
    void mark_lost() { is_lost_ = true; }
    [[nodiscard]] bool is_lost() const { return is_lost_; }

    // The functions from here to resume() are for the background, while no version is retained and
    // no stage is held, so that neither copy changes its role.
    //
    // Frees the memory of both copies. With `keep`, first moves the live copy's bytes to host
    // memory. Returns the measured number of freed bytes. Errors: kResourceExhausted without host
    // memory to keep them; nothing has changed.
    enum class Keep { kNo, kYes };
    Result<std::int64_t> release(Keep keep);
    // Allocates memory for the live copy again, and restores kept bytes. Errors:
    // kResourceExhausted; nothing has changed.
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
    // The data about weights on a GPU besides their memory.
    struct GpuSide {
        std::unique_ptr<PinnedPieces> pieces;  // used by `staging`
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
    std::optional<HostCopy> host_{};  // where versions are staged; empty: in the other copy
    std::optional<Arena> kept_{};     // the live copy's bytes while it is released
    std::int64_t bytes_;
};

}  // namespace pitstop::tp_worker
