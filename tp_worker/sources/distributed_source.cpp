#include "tp_worker/sources/distributed_source.h"

#include "kernels/runtime/device_memory.h"
#include "tp_worker/groups/groups.h"
#include "tp_worker/sources/tensor_source.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kBroadcastBytesMax = std::int64_t{16} << 30;

// The type that torch uses to broadcast a tensor: ranks must have the same count and type. Source:
// torch/csrc/distributed/c10d/NCCLUtils.cpp, getNcclDataType.
Broadcast broadcast_of(checkpoint::StoredDtype dtype, std::int64_t bytes) {
    using kernels::NcclType;
    const auto of = [bytes](NcclType type) {
        return Broadcast{.num = bytes / kernels::bytes_of(type), .type = type};
    };
    switch (dtype) {
        case checkpoint::StoredDtype::kBf16:
            return of(NcclType::kBf16);
        case checkpoint::StoredDtype::kF16:
            return of(NcclType::kF16);
        case checkpoint::StoredDtype::kF32:
        case checkpoint::StoredDtype::kC64:
            return of(NcclType::kF32);
        case checkpoint::StoredDtype::kF64:
            return of(NcclType::kF64);
        case checkpoint::StoredDtype::kI32:
            return of(NcclType::kI32);
        case checkpoint::StoredDtype::kI64:
            return of(NcclType::kI64);
        default:
            return of(NcclType::kBytes);
    }
}

Error too_large(std::int64_t bytes) {
    return make_error(
        ErrorCode::kTooLarge,
        "a broadcast of {} bytes; at most {} are accepted",
        bytes,
        kBroadcastBytesMax
    );
}

class Broadcasts {
  public:
    explicit Broadcasts(const SourceArgs& args) : args_(args) {}

    Result<> run() {
        RETURN_IF_ERROR(read_specs());
        return args_.source.format == messages::TensorFormat::kSparse ? receive_sparse()
                                                                      : take_whole();
    }

  private:
    Result<> read_specs() {
        for (const messages::TensorInfo& info : args_.source.tensors) {
            ASSIGN_OR_RETURN(
                checkpoint::TensorSpec spec, read_spec(info.name, info.dtype, info.shape)
            );
            ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(spec));
            // A tensor that the model ignores may have any shape; sums of these do not overflow.
            if (args_.source.format != messages::TensorFormat::kSparse &&
                bytes > kBroadcastBytesMax) {
                return make_error(
                    ErrorCode::kTooLarge,
                    "'{}' has {} bytes; at most {} are accepted in a broadcast",
                    spec.name,
                    bytes,
                    kBroadcastBytesMax
                );
            }
            specs_.push_back(std::move(spec));
            bytes_.push_back(bytes);
        }
        // Tensors that the model does not have are refused before anything is received.
        const std::vector<std::string> problems =
            find_problems(args_.stage.args().layout, specs_, Completeness::kPartial);
        if (!problems.empty()) return error_of("the announced tensors", problems);
        return Ok{};
    }

    Result<Landed> receive(const Broadcast& broadcast) {
        const TimePoint begun = Clock::now();
        ASSIGN_OR_RETURN(
            Landed landed,
            args_.worker.groups->receive(
                args_.source.group,
                broadcast,
                buffer_,
                {args_.stall_deadline(), args_.stage.args().is_dropped}
            )
        );
        args_.stage.add_receive(Clock::now() - begun);
        return landed;
    }

    // Returns the end of the tensors, from `begin` on, that share one broadcast.
    [[nodiscard]] std::size_t end_of_pack(std::size_t begin) const {
        if (args_.source.format == messages::TensorFormat::kEach) return begin + 1;
        if (args_.source.packed_bytes == 0) return specs_.size();
        std::int64_t sum = 0;
        std::size_t end = begin;
        while (end < specs_.size() && sum <= args_.source.packed_bytes) sum += bytes_[end++];
        return end;
    }

    // Plans, before the first broadcast is received, which tensors share one. Each broadcast is as
    // large as allowed.
    Result<> plan() {
        std::int64_t largest = 0;
        for (std::size_t begin = 0; begin < specs_.size(); begin = ends_.back()) {
            ends_.push_back(end_of_pack(begin));
            std::int64_t sum = 0;
            for (std::size_t i = begin; i < ends_.back(); ++i) {
                sum += bytes_[i];
                if (sum > kBroadcastBytesMax) return too_large(sum);
            }
            largest = std::max(largest, sum);
        }
        return args_.worker.groups->make_room(args_.source.group, largest);
    }

    Result<> take_whole() {
        RETURN_IF_ERROR(plan());
        const std::span<const messages::TensorInfo> tensors = args_.source.tensors;
        const bool is_each = args_.source.format == messages::TensorFormat::kEach;
        std::size_t begin = 0;
        for (const std::size_t end : ends_) {
            std::int64_t sum = 0;
            for (std::size_t i = begin; i < end; ++i) sum += bytes_[i];
            const Broadcast flat{.num = sum};
            ASSIGN_OR_RETURN(
                const Landed landed,
                receive(is_each ? broadcast_of(specs_[begin].dtype, sum) : flat)
            );
            ASSIGN_OR_RETURN(
                std::vector<Incoming> incoming,
                cut_flattened(tensors.subspan(begin, end - begin), landed.bytes)
            );
            for (Incoming& each : incoming) each.bytes.is_on_gpu = landed.is_on_gpu;
            RETURN_IF_ERROR(args_.stage.stage_tensors(incoming, WeightStage::Expect::kMore));
            begin = end;
        }
        return Ok{};
    }

    // Receives into the host's memory, for tensors whose elements are examined.
    Result<std::vector<std::byte>> receive_to_host(
        checkpoint::StoredDtype dtype, std::int64_t bytes
    ) {
        ASSIGN_OR_RETURN(const Landed landed, receive(broadcast_of(dtype, bytes)));
        if (!landed.is_on_gpu)
            return std::vector<std::byte>(landed.bytes.begin(), landed.bytes.end());
        std::vector<std::byte> host(landed.bytes.size());
        kernels::copy_and_wait(host.data(), landed.bytes.data(), bytes);
        return host;
    }

    Result<> receive_sparse() {
        constexpr std::int64_t kIndexBytes = 4;
        args_.stage.allow_none();  // a trainer's step may change no element
        std::int64_t largest = 0;
        for (std::size_t i = 0; i < specs_.size(); ++i) {
            const std::int64_t num = args_.source.num_updates[i];
            if (num > kBroadcastBytesMax / 8)
                return make_error(
                    ErrorCode::kTooLarge,
                    "'{}' has {} updates; at most {} are accepted",
                    specs_[i].name,
                    num,
                    kBroadcastBytesMax / 8
                );
            const std::int64_t unit = std::max(kIndexBytes, bytes_of(specs_[i].dtype));
            largest = std::max(largest, num * unit);
        }
        RETURN_IF_ERROR(args_.worker.groups->make_room(args_.source.group, largest));
        for (std::size_t i = 0; i < specs_.size(); ++i) {
            const std::int64_t num = args_.source.num_updates[i];
            if (num == 0) continue;
            ASSIGN_OR_RETURN(
                const std::vector<std::byte> indices,
                receive_to_host(checkpoint::StoredDtype::kI32, num * kIndexBytes)
            );
            ASSIGN_OR_RETURN(
                const std::vector<std::byte> values,
                receive_to_host(specs_[i].dtype, num * bytes_of(specs_[i].dtype))
            );
            const SparseTensor sparse{
                .spec = specs_[i],
                .indices = indices.data(),
                .values = values.data(),
                .num = num,
            };
            RETURN_IF_ERROR(args_.stage.stage_sparse(std::span(&sparse, 1)));
        }
        return Ok{};
    }

    const SourceArgs& args_;
    std::vector<checkpoint::TensorSpec> specs_{};
    std::vector<std::int64_t> bytes_{};  // of each tensor
    std::vector<std::size_t> ends_{};    // one past the last tensor of each broadcast
    std::vector<std::byte> buffer_{};    // where a group of the host lands
};

}  // namespace

Result<> deliver_distributed(const SourceArgs& args) {
    Result<> result = Broadcasts(args).run();
    // After any failure, the trainer's remaining broadcasts have no receiver.
    if (!result) args.worker.groups->refuse(args.source.group, result.error().message);
    return result;
}

}  // namespace pitstop::tp_worker
