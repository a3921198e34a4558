// Sums over the ranks of a replica by NCCL, in steps whose sums are large (sum_choice.h).
//
// A step uses it on all ranks or on none: begin_step() has them agree on the host, which also names
// a rank that is not there before anything waits for it on a GPU. A rank on which a trainer's group
// has NCCL (nccl_turn.h) says no, so that no two communicators are ever in flight on a GPU, and no
// step waits for a trainer.
//
// The communicator does not block. A sum is enqueued when all_reduce_sum() returns, and is over
// when finish_step() has returned: that polls the stream, NCCL and the deadline. So few sums are
// enqueued ahead of the GPU that no launch ever waits for room in its queue, where nothing would
// look at the deadline. What fails or does not come is aborted, and the ranks meet on the host once
// more, so that the error names who is missing.
//
// Owns:   the communicator; it aborts it in the end.
// Thread: the steps'.
// Errors: the host communicator's, which name a rank; NCCL's (kernels/nccl.h). After one of either
//         the worker must end; of a trial's, only after the host's.
#pragma once

#include "base/time.h"
#include "kernels/device_memory.h"
#include "kernels/nccl.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/groups/nccl_turn.h"

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
        Communicator& host;              // has the same ranks; outlives this one
        Communicator& bus;               // likewise; the id goes by it
        std::shared_ptr<NcclTurn> turn;  // says whose turn it is in this process
        kernels::Stream stream{};        // the steps'
        // Bounds a wait for sums, and is not more than `host` has patience: a rank that fails to
        // join, or in a trial, meets the others there after half of it.
        Duration limit{};
    };
    struct Connected {
        std::unique_ptr<RankNccl> nccl{};  // null on every rank, or on none
        std::string why_not{};
    };
    // Returns when all ranks have joined, or know that they will not: one of them has no NCCL, or
    // another version of it, or NCCL refuses. Errors: the host communicator's alone.
    static Result<Connected> connect(const Args& args);

    explicit RankNccl(const Args& args) : args_(args) {}

    // Is called before a step's first sum. Afterwards is_in_use() is the same on all ranks.
    Result<> begin_step();
    // Does the same for sums that are tried while ranks can still do without NCCL: one that fails
    // names nobody, as the ranks meet on the host next (find_rank_without).
    Result<> begin_trial();
    [[nodiscard]] bool is_in_use() const { return held_.has_value(); }
    // data[i] becomes the sum over the ranks, in an order that NCCL chooses by the size; its bits
    // are the same on every rank. REQUIRES: is_in_use(), nothing is captured.
    Result<> all_reduce_sum(std::span<float> data);
    // Rank r's bytes become the r-th part of `all`. REQUIRES: the same.
    Result<> all_gather(std::span<const std::byte> mine, std::byte* all);
    // Waits for the sums of the step. It has nothing to do where they went another way.
    Result<> finish_step();

    [[nodiscard]] const std::string& version() const { return version_; }
    // Counts the sums that were enqueued.
    [[nodiscard]] std::int64_t num_sums() const { return num_sums_; }

  private:
    enum class Use : std::uint8_t { kStep, kTrial };
    Result<> begin(Use use);
    Result<> join(const std::string& id);
    // Does what must come behind each call that enqueues.
    Result<> follow(Result<> enqueued);
    Result<> wait(
        std::string_view what, Duration limit, const std::function<Result<bool>()>& is_done
    );
    Result<> wait_for(const kernels::DeviceEvent& event);
    // This is so short that all ranks are back before one is given up on the host.
    [[nodiscard]] Duration joint_limit() const;
    [[nodiscard]] Duration sums_limit() const;
    Error fail_sums(Error error);

    Args args_;
    std::string version_{};
    kernels::DeviceEvent is_done_{};
    std::array<kernels::DeviceEvent, 2> marks_{};  // used in turn, behind every few sums
    Use use_ = Use::kStep;
    TimePoint trial_end_{};
    std::optional<NcclTurn::Held> held_{};  // given back when the communicator has ended
    std::optional<kernels::NcclCommunicator> comm_{};
    std::int64_t num_sums_ = 0;
    std::int64_t num_sums_in_step_ = 0;
};

}  // namespace pitstop::tp_worker
