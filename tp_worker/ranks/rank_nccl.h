// Sums over the ranks of a replica with NCCL, in steps whose sums are large (sum_choice.h).
//
// A step uses NCCL on all ranks or on none: in begin_step() the ranks agree on the host. The
// agreement also names a missing rank before any GPU waits for that rank. If a trainer's group has
// the turn on some rank (nccl_turn.h), that rank declines, so that no two communicators are ever in
// flight on one GPU, and no step waits for a trainer.
//
// The communicator does not block. A sum is enqueued when all_reduce_sum() returns, and is done
// when finish_step() has returned, which polls the stream, NCCL and the deadline. Few enough sums
// are enqueued ahead of the GPU that no launch ever waits for room in its queue, where nothing
// would check the deadline. A sum that fails or does not end is aborted, and the ranks meet on the
// host once more, so that the error names what is missing.
//
// Owns:   the communicator, which it aborts at the end.
// Thread: the steps'.
// Errors: the host communicator's, which name a rank; NCCL's (kernels/runtime/nccl.h). After either
//         error the worker must end; but a trial that fails in NCCL ends only the trial, and the
//         worker continues.
#pragma once

#include "base/time.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/nccl.h"
#include "tp_worker/groups/nccl_turn.h"
#include "tp_worker/ranks/communicator.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pitstop::tp_worker {

class RankNccl {
  public:
    struct Args {
        Communicator& host;  // has the same ranks; outlives this one
        Communicator& bus;   // has the same ranks, and outlives this one; carries the id
        std::shared_ptr<NcclTurn> turn;  // of this process
        kernels::Stream stream{};        // of the steps
        // Limits a wait for sums; at most the patience of `host`. A rank that fails to join, or
        // fails in a trial, meets the others on the host after half of this time.
        Duration limit{};
    };
    struct Connected {
        std::unique_ptr<RankNccl> nccl{};  // null on every rank, or on none
        std::string why_not{};
    };
    // Returns when all ranks have joined, or know that they will not: one has no NCCL, or another
    // version, or NCCL refuses. Errors: only the host communicator's.
    static Result<Connected> connect(const Args& args);

    explicit RankNccl(const Args& args) : args_(args) {}

    // Called before a step's first sum. Afterwards is_in_use() is the same on all ranks.
    Result<> begin_step();
    // The same for trial sums, while ranks can still continue without NCCL. A failure names no
    // rank, because the ranks meet on the host next (find_rank_without).
    Result<> begin_trial();
    [[nodiscard]] bool is_in_use() const { return held_.has_value(); }
    // data[i] becomes the sum over the ranks, in an order that NCCL chooses by the size; its bits
    // are the same on every rank. REQUIRES: is_in_use(), nothing is captured.
    Result<> all_reduce_sum(std::span<float> data);
    // Rank r's bytes become the r-th part of `all`. REQUIRES: as for all_reduce_sum().
    Result<> all_gather(std::span<const std::byte> mine, std::byte* all);
    // Waits for the sums of the step. Does nothing if they did not use NCCL.
    Result<> finish_step();

    [[nodiscard]] const std::string& version() const { return version_; }
    // The number of sums that were enqueued.
    [[nodiscard]] std::int64_t num_sums() const { return num_sums_; }

  private:
    enum class Use : std::uint8_t { kStep, kTrial };
    Result<> begin(Use use);
    Result<> join(const std::string& id);
    // Must be called after each call that enqueues.
    Result<> follow(Result<> enqueued);
    Result<> wait(
        std::string_view what, Duration limit, const std::function<Result<bool>()>& is_done
    );
    Result<> wait_for(const kernels::DeviceEvent& event);
    // Short enough that all ranks have returned before the host's limit for any rank ends.
    [[nodiscard]] Duration joint_limit() const;
    [[nodiscard]] Duration sums_limit() const;
    Error fail_sums(Error error);

    Args args_;
    std::string version_{};
    kernels::DeviceEvent is_done_{};
    std::array<kernels::DeviceEvent, 2> marks_{};  // used in turn, after every few sums
    Use use_ = Use::kStep;
    TimePoint trial_end_{};
    std::optional<NcclTurn::Held> held_{};  // released when the communicator has ended
    std::optional<kernels::NcclCommunicator> comm_{};
    std::int64_t num_sums_ = 0;
    std::int64_t num_sums_in_step_ = 0;
};

}  // namespace pitstop::tp_worker
