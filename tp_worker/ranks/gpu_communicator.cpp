#include "tp_worker/ranks/gpu_communicator.h"

#include "base/log.h"
#include "kernels/exchange.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_import.h"
#include "kernels/runtime/device_memory.h"
#include "tp_worker/ranks/rank_nccl.h"

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using kernels::Exchange;
using kernels::ExchangeFailure;

// Each rank's description for the other ranks, as raw bytes between processes of one machine.
struct Offer {
    std::array<char, kernels::kIpcHandleBytes> handle{};
    std::int32_t gpu = 0;
    std::int32_t num_multiprocessors = 0;
};

class GpuCommunicator final : public Communicator {
  public:
    explicit GpuCommunicator(const GpuCommunicatorArgs& args)
        : host_(args.host), stream_(args.stream), limit_(args.limit) {
        exchange_.rank = raw(host_.rank());
        exchange_.size = host_.size();
        const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(args.limit);
        exchange_.limit_ns = static_cast<std::uint64_t>(limit.count());
    }

    Result<> connect();
    Result<> connect_nccl(const GpuCommunicatorArgs& args);

    [[nodiscard]] Rank rank() const override { return host_.rank(); }
    [[nodiscard]] int size() const override { return host_.size(); }

    Result<> all_reduce_sum(std::span<float> data) override {
        if (nccl_ && nccl_->is_in_use()) return nccl_->all_reduce_sum(data);
        sum_by_kernel(data);
        return Ok{};
    }
    Result<> gather_columns(View2<const float> part, View2<float> whole) override {
        kernels::gather_columns_cuda(
            {.exchange = exchange_, .part = part, .whole = whole, .stream = stream_}
        );
        return Ok{};
    }
    Result<> all_gather_records(std::span<const std::byte> mine, std::span<std::byte> all)
        override {
        CHECK(all.size() == mine.size() * static_cast<std::size_t>(exchange_.size));
        kernels::all_gather_cuda(
            {.exchange = exchange_,
             .mine = mine.data(),
             .all = all.data(),
             .num_bytes = static_cast<std::int64_t>(mine.size()),
             .stream = stream_}
        );
        return Ok{};
    }
    Result<> broadcast(std::span<std::byte> data) override { return host_.broadcast(data); }
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
        return host_.all_gather(mine, all);
    }
    Result<> barrier() override { return host_.barrier(); }
    Result<> barrier_within(Duration limit) override { return host_.barrier_within(limit); }

    Result<> check() override {
        const ExchangeFailure failure = *exchange_.failure;
        if (failure.kind == static_cast<std::uint64_t>(ExchangeFailure::Kind::kNone)) return Ok{};
        return kernels::error_of(failure, exchange_.limit_ns);
    }

    Result<> begin_sums(std::int64_t bytes) override {
        return nccl_ && bytes >= nccl_bytes_min_ ? nccl_->begin_step() : Result<>(Ok{});
    }
    Result<> finish_sums() override { return nccl_ ? nccl_->finish_step() : Result<>(Ok{}); }
    [[nodiscard]] bool may_capture_sum(std::int64_t bytes) const override {
        return !nccl_ || bytes < nccl_bytes_min_;
    }

    [[nodiscard]] std::string describe() const override;

  private:
    Result<> make_memory();
    Result<> open_peer(int rank, const Offer& offer);
    void sum_by_kernel(std::span<float> data) const {
        kernels::all_reduce_cuda(
            {.exchange = exchange_,
             .data = data.data(),
             .num = static_cast<std::int64_t>(data.size()),
             .stream = stream_}
        );
    }
    Result<std::vector<SumTime>> time_sums(std::int64_t bytes_max);
    Result<double> time_sum(std::span<float> data, SumPath path, int num);
    Result<double> try_nccl_sum(std::span<float> data, int num);
    Result<> try_nccl();

    Communicator& host_;
    kernels::Stream stream_;
    Duration limit_;
    kernels::DeviceBuffer memory_{};
    kernels::PinnedBuffer failure_{};
    std::vector<kernels::DeviceImport> peers_{};
    Exchange exchange_{};
    std::unique_ptr<RankNccl> nccl_{};  // null without NCCL between the ranks
    std::string why_no_nccl_{};
    std::int64_t nccl_bytes_min_ = kNeverBytes;  // sums of at least this many bytes use NCCL
    bool is_measured_ = false;
};

Result<> GpuCommunicator::make_memory() {
    ASSIGN_OR_RETURN(
        memory_, kernels::DeviceBuffer::create(kernels::exchange_bytes(exchange_.chunk_bytes))
    );
    ASSIGN_OR_RETURN(failure_, kernels::PinnedBuffer::create(sizeof(ExchangeFailure)));
    exchange_.failure = new (failure_.data()) ExchangeFailure{};
    const std::vector<std::byte> zeros(static_cast<std::size_t>(kernels::exchange_header_bytes()));
    kernels::copy_and_wait(memory_.data(), zeros.data(), kernels::exchange_header_bytes());
    return Ok{};
}

Result<> GpuCommunicator::open_peer(int rank, const Offer& offer) {
    if (!kernels::has_peer_access(offer.gpu)) {
        return make_error(
            ErrorCode::kUnsupported,
            "GPU {} of rank {} cannot access the memory of GPU {} of rank {}; --tp on GPUs needs "
            "peer access between them",
            kernels::opened_cuda_device().index,
            exchange_.rank,
            offer.gpu,
            rank
        );
    }
    ASSIGN_OR_RETURN(
        kernels::DeviceImport import,
        kernels::DeviceImport::open({offer.handle.data(), offer.handle.size()})
    );
    if (import.bytes() < memory_.bytes()) {
        return make_error(
            ErrorCode::kUnavailable,
            "rank {}'s memory for exchanges has {} bytes; {} are needed",
            rank,
            import.bytes(),
            memory_.bytes()
        );
    }
    exchange_.memories[static_cast<std::size_t>(rank)] = import.writable();
    peers_.push_back(std::move(import));
    return Ok{};
}

Result<> GpuCommunicator::connect() {
    if (exchange_.size > kernels::kExchangeRanksMax) {
        return make_error(
            ErrorCode::kUnsupported,
            "--device cuda with --tp {}; accepted are 1 to {}",
            exchange_.size,
            kernels::kExchangeRanksMax
        );
    }
    RETURN_IF_ERROR(make_memory());
    const kernels::CudaDeviceInfo device = kernels::opened_cuda_device();
    Offer mine{.gpu = device.index, .num_multiprocessors = device.num_multiprocessors};
    const std::string handle = kernels::ipc_handle_of(memory_);
    std::ranges::copy(handle, mine.handle.begin());
    std::vector<Offer> offers(static_cast<std::size_t>(exchange_.size));
    RETURN_IF_ERROR(host_.all_gather(
        std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(offers))
    ));
    // A launch has the same number of blocks on every rank: as many as run at once on each.
    exchange_.num_blocks = kernels::kExchangeBlocksMax;
    for (int rank = 0; rank < exchange_.size; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        exchange_.num_blocks = std::min(exchange_.num_blocks, offers[at].num_multiprocessors);
        if (rank == exchange_.rank) {
            exchange_.memories[at] = static_cast<std::byte*>(memory_.data());
        } else {
            RETURN_IF_ERROR(open_peer(rank, offers[at]));
        }
    }
    return host_.barrier();
}

// The number of timed sums, of zeros. A sum before them, which loads and connects everything, is
// not timed.
constexpr int kNumTimed = 5;

// Sums repeatedly by `path`. Returns the milliseconds per sum on this rank, or 0 if none is timed.
Result<double> GpuCommunicator::time_sum(std::span<float> data, SumPath path, int num) {
    if (path == SumPath::kNccl) RETURN_IF_ERROR(nccl_->begin_trial());  // first on every rank
    CHECK(path == SumPath::kOwn || nccl_->is_in_use());  // nothing else uses NCCL at the start
    ASSIGN_OR_RETURN(const kernels::DeviceEvent begin, kernels::DeviceEvent::create());
    ASSIGN_OR_RETURN(const kernels::DeviceEvent end, kernels::DeviceEvent::create());
    RETURN_IF_ERROR(all_reduce_sum(data));
    begin.record(stream_);
    for (int i = 0; i < num; ++i) RETURN_IF_ERROR(all_reduce_sum(data));
    end.record(stream_);
    RETURN_IF_ERROR(finish_sums());
    end.wait(2 * limit_, "sums that are timed", kernels::DeviceEvent::Watch::kLoose);
    RETURN_IF_ERROR(check());
    return num == 0 ? 0.0 : end.ms_since(begin) / num;
}

// Returns the milliseconds per sum with NCCL here; 0 on every rank if it fails on one, and then no
// rank uses NCCL. The first sum allocates what NCCL needs for sums: a communicator that joined may
// still be unusable.
Result<double> GpuCommunicator::try_nccl_sum(std::span<float> data, int num) {
    Result<double> timed = time_sum(data, SumPath::kNccl, num);
    ASSIGN_OR_RETURN(
        const std::optional<Rank> without, find_rank_without(timed.has_value(), host_)
    );
    if (!without) return timed;
    why_no_nccl_ =
        timed ? fmt::format("NCCL {}: a sum failed on rank {}", nccl_->version(), raw(*without))
              : timed.error().message;
    nccl_.reset();
    return 0.0;
}

// Tries one small sum if none is timed, so that an NCCL that cannot sum is known before serving.
Result<> GpuCommunicator::try_nccl() {
    constexpr std::int64_t kBytes = 4096;
    ASSIGN_OR_RETURN(const kernels::DeviceBuffer data, kernels::DeviceBuffer::create(kBytes));
    kernels::fill_device(data.data(), 0, kBytes, stream_);
    const std::span floats(
        static_cast<float*>(data.data()), static_cast<std::size_t>(kBytes) / sizeof(float)
    );
    RETURN_IF_ERROR(try_nccl_sum(floats, 0));
    return Ok{};
}

// Returns the same numbers on every rank; none if they do not use NCCL.
Result<std::vector<SumTime>> GpuCommunicator::time_sums(std::int64_t bytes_max) {
    std::vector<SumTime> times;
    for (const std::int64_t bytes : sizes_to_measure(bytes_max)) times.push_back({.bytes = bytes});
    if (times.empty()) return times;
    ASSIGN_OR_RETURN(const kernels::DeviceBuffer data, kernels::DeviceBuffer::create(bytes_max));
    kernels::fill_device(data.data(), 0, bytes_max, stream_);
    using Pair = std::array<double, 2>;
    for (SumTime& time : times) {
        const std::span floats(
            static_cast<float*>(data.data()), static_cast<std::size_t>(time.bytes) / sizeof(float)
        );
        Pair mine{};
        ASSIGN_OR_RETURN(mine[0], time_sum(floats, SumPath::kOwn, kNumTimed));
        ASSIGN_OR_RETURN(mine[1], try_nccl_sum(floats, kNumTimed));
        if (!nccl_) return std::vector<SumTime>();
        std::vector<Pair> all(static_cast<std::size_t>(exchange_.size));
        RETURN_IF_ERROR(host_.all_gather(
            std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))
        ));
        for (const Pair& of_rank : all) {
            time.own_ms = std::max(time.own_ms, of_rank[0]);
            time.nccl_ms = std::max(time.nccl_ms, of_rank[1]);
        }
        spdlog::info(
            "a sum of {} bytes over the ranks: {:.4f} ms, by NCCL {:.4f} ms",
            time.bytes,
            time.own_ms,
            time.nccl_ms
        );
    }
    return times;
}

Result<> GpuCommunicator::connect_nccl(const GpuCommunicatorArgs& args) {
    const bool is_timed = args.sums == SumPath::kAuto && args.is_timed;
    if (args.sums == SumPath::kAuto) nccl_bytes_min_ = nccl_bytes_min_guess(exchange_.size);
    if (args.sums == SumPath::kNccl) nccl_bytes_min_ = 0;
    const bool is_wanted = is_timed ? !sizes_to_measure(args.sum_bytes_max).empty()
                                    : args.sum_bytes_max >= nccl_bytes_min_;
    if (args.sums == SumPath::kOwn || !is_wanted) {
        nccl_bytes_min_ = kNeverBytes;
        return Ok{};
    }
    ASSIGN_OR_RETURN(
        RankNccl::Connected connected,
        RankNccl::connect(
            {.host = host_,
             .bus = args.bus,
             .turn = args.nccl_turn,
             .stream = stream_,
             .limit = args.limit}
        )
    );
    nccl_ = std::move(connected.nccl);
    why_no_nccl_ = std::move(connected.why_not);
    if (nccl_ && !is_timed) RETURN_IF_ERROR(try_nccl());
    if (!nccl_ && args.sums == SumPath::kNccl) {
        return make_error(
            ErrorCode::kUnsupported,
            "--all-reduce nccl needs NCCL between the ranks, which is not available: {}",
            why_no_nccl_
        );
    }
    if (!nccl_ || !is_timed) return Ok{};
    ASSIGN_OR_RETURN(const std::vector<SumTime> times, time_sums(args.sum_bytes_max));
    nccl_bytes_min_ = nccl_bytes_min(times);  // without times NCCL is never used
    is_measured_ = true;
    return Ok{};
}

std::string GpuCommunicator::describe() const {
    constexpr std::string_view kOwn = "sums over the ranks: own kernels";
    if (!nccl_) {
        return why_no_nccl_.empty() ? std::string(kOwn)
                                    : fmt::format("{}; no NCCL: {}", kOwn, why_no_nccl_);
    }
    const std::string how = fmt::format("NCCL {}", nccl_->version());
    if (nccl_bytes_min_ == kNeverBytes) return fmt::format("{}, ahead of {}", kOwn, how);
    return fmt::format(
        "{}; from {} bytes on by {}{}",
        kOwn,
        nccl_bytes_min_,
        how,
        is_measured_ ? ", as measured" : ""
    );
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect_gpu_communicator(const GpuCommunicatorArgs& args) {
    auto communicator = std::make_unique<GpuCommunicator>(args);
    RETURN_IF_ERROR(communicator->connect());
    RETURN_IF_ERROR(communicator->connect_nccl(args));
    spdlog::info("{}", communicator->describe());
    return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace pitstop::tp_worker
