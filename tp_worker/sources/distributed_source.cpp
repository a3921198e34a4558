#include "tp_worker/sources/distributed_source.h"

#include "tp_worker/groups/groups.h"
#include "tp_worker/sources/tensor_source.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kBroadcastBytesMax = std::int64_t{16} << 30;

class Broadcasts {
  public:
    explicit Broadcasts(const SourceArgs& args) : args_(args) {}

    Result<> run() {
        RETURN_IF_ERROR(read_specs());
        return args_.source.format == messages::TensorFormat::kSparse ? take_sparse()
                                                                      : take_whole();
    }

  private:
    Result<> read_specs() {
        for (const messages::TensorInfo& info : args_.source.tensors) {
            ASSIGN_OR_RETURN(
                checkpoint::TensorSpec spec, read_spec(info.name, info.dtype, info.shape)
            );
            ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(spec));
            // One that the model ignores may have any shape; sums of these do not overflow.
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
        // What the model does not have is refused before anything is received.
        const std::vector<std::string> problems =
            find_problems(args_.stage.args().layout, specs_, Completeness::kPartial);
        if (!problems.empty()) return error_of("the announced tensors", problems);
        return Ok{};
    }

    Result<std::span<const std::byte>> receive(std::int64_t bytes) {
        if (bytes > kBroadcastBytesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "a broadcast of {} bytes; at most {} are accepted",
                bytes,
                kBroadcastBytesMax
            );
        }
        const TimePoint begun = Clock::now();
        buffer_.resize(static_cast<std::size_t>(bytes));
        RETURN_IF_ERROR(args_.worker.groups->receive(
            args_.source.group, buffer_, {args_.stall_deadline(), args_.stage.args().is_dropped}
        ));
        args_.stage.add_receive(Clock::now() - begun);
        return std::span<const std::byte>(buffer_);
    }

    // How many tensors from `begin` on come in one broadcast.
    [[nodiscard]] std::size_t end_of_pack(std::size_t begin) const {
        if (args_.source.format == messages::TensorFormat::kEach) return begin + 1;
        if (args_.source.packed_bytes == 0) return specs_.size();
        std::int64_t sum = 0;
        std::size_t end = begin;
        while (end < specs_.size() && sum <= args_.source.packed_bytes) sum += bytes_[end++];
        return end;
    }

    Result<> take_whole() {
        const std::span<const messages::TensorInfo> tensors = args_.source.tensors;
        for (std::size_t begin = 0; begin < specs_.size();) {
            const std::size_t end = end_of_pack(begin);
            std::int64_t sum = 0;
            for (std::size_t i = begin; i < end; ++i) {
                if (sum > kBroadcastBytesMax) break;
                sum += bytes_[i];
            }
            ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, receive(sum));
            ASSIGN_OR_RETURN(
                const std::vector<Incoming> incoming,
                cut_flattened(tensors.subspan(begin, end - begin), bytes)
            );
            RETURN_IF_ERROR(args_.stage.take(incoming, WeightStage::Expect::kMore));
            begin = end;
        }
        return Ok{};
    }

    Result<> take_sparse() {
        constexpr std::int64_t kIndexBytes = 4;
        for (std::size_t i = 0; i < specs_.size(); ++i) {
            const std::int64_t num = args_.source.num_updates[i];
            if (num > kBroadcastBytesMax / 8)
                return make_error(ErrorCode::kTooLarge, "'{}': {} updates", specs_[i].name, num);
            if (num == 0) continue;
            ASSIGN_OR_RETURN(const auto raw_indices, receive(num * kIndexBytes));
            const std::vector<std::byte> indices(raw_indices.begin(), raw_indices.end());
            ASSIGN_OR_RETURN(const auto values, receive(num * bytes_of(specs_[i].dtype)));
            const SparseTensor sparse{
                .spec = specs_[i],
                .indices = indices.data(),
                .values = values.data(),
                .num = num,
            };
            RETURN_IF_ERROR(args_.stage.take_sparse(std::span(&sparse, 1)));
        }
        return Ok{};
    }

    const SourceArgs& args_;
    std::vector<checkpoint::TensorSpec> specs_{};
    std::vector<std::int64_t> bytes_{};  // of each
    std::vector<std::byte> buffer_{};
};

}  // namespace

Result<> deliver_distributed(const SourceArgs& args) {
    Result<> result = Broadcasts(args).run();
    // Whatever went wrong, the trainer's broadcasts that still come have no receiver.
    if (!result) args.worker.groups->refuse(args.source.group, result.error().message);
    return result;
}

}  // namespace pitstop::tp_worker
