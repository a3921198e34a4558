// The sources of weights: each delivers tensors into a stage.
//
//   disk_source.h         a checkpoint directory
//   ipc_source.h          buckets of shared memory, announced on a sender's socket
//   tensor_source.h       bytes or handles in the call
//   distributed_source.h  broadcasts in a group
//
// A source trusts nothing it was sent: names, shapes, offsets and sizes are checked before any byte
// is touched. Every fault is a typed error here, and is reported to the sender if possible.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/weight_source.h"
#include "tp_worker/sources/torch_handle.h"
#include "tp_worker/weights/weight_stage.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

class Groups;

// The replica of this rank among those of the tree.
struct ReplicaPlace {
    ReplicaId replica{};
    int num_replicas = 1;
};

// The properties of this rank that sources need.
struct Worker {
    ReplicaPlace place{};
    Rank rank{};
    int tp = 1;
    std::string device_uuid{};  // as in senders' handles
    Groups* groups = nullptr;
    const std::atomic<bool>* is_over = nullptr;  // set when the process ends
};

struct SourceArgs {
    const messages::WeightSource& source;
    const Worker& worker;
    WeightStage& stage;
    CudaMappings& mappings;                                  // of the update
    WeightStage::Expect expect = WeightStage::Expect::kAll;  // kMore: one bucket of a session
    TimePoint deadline = TimePoint::max();                   // of the whole delivery

    // Returns the flag that ends even the last answers to a sender.
    [[nodiscard]] const std::atomic<bool>& is_over() const {
        static const std::atomic<bool> never{false};
        return worker.is_over == nullptr ? never : *worker.is_over;
    }

    // Returns the means to open the source's CUDA handles; nothing on the CPU.
    [[nodiscard]] std::optional<CudaOpening> cuda_opening() const {
        const bool is_on_gpu = stage.args().gpu != nullptr || stage.args().pieces != nullptr;
        if (!is_on_gpu) return std::nullopt;
        return CudaOpening{
            .mappings = mappings,
            .device_uuid = worker.device_uuid,
            .wait = {.until = stall_deadline(), .is_dropped = stage.args().is_dropped}};
    }

    // Returns the deadline for a sender's next message, from now.
    [[nodiscard]] TimePoint stall_deadline() const {
        // Bounds the number from the wire: much more overflows the clock.
        constexpr std::int64_t kDayMs = std::int64_t{24} * 3600 * 1000;
        const std::chrono::milliseconds stall(std::min(source.stall_ms, kDayMs));
        return std::min(deadline, Clock::now() + stall);
    }
};

// Delivers everything of `args.source` into the stage. Waits no longer than args.deadline, and ends
// soon after the stage was dropped.
Result<> deliver(const SourceArgs& args);

// Tells a sender that would wait for this rank that the stage could not begin. Returns `why`.
Result<> decline(const SourceArgs& args, const Error& why);

// Reads a tensor of a message from outside; kInvalidArgument names the fault.
Result<checkpoint::TensorSpec> read_spec(
    std::string_view name, std::string_view dtype, const std::vector<std::int64_t>& shape
);
// Returns the bytes of the whole tensor; kInvalidArgument for a negative extent or more
// than 2^62 bytes.
Result<std::int64_t> bytes_of(const checkpoint::TensorSpec& spec);

}  // namespace pitstop::tp_worker
