#include "tp_worker/groups/gpu_communicator.h"

#include "kernels/cuda_device.h"
#include "kernels/device_import.h"
#include "kernels/device_memory.h"
#include "kernels/exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using kernels::Exchange;
using kernels::ExchangeFailure;

// What each rank tells the others of itself, in the bytes of one machine's processes.
struct Offer {
    std::array<char, kernels::kIpcHandleBytes> handle{};
    std::int32_t gpu = 0;
    std::int32_t num_multiprocessors = 0;
};

class GpuCommunicator final : public Communicator {
  public:
    explicit GpuCommunicator(const GpuCommunicatorArgs& args)
        : host_(args.host), stream_(args.stream) {
        exchange_.rank = raw(host_.rank());
        exchange_.size = host_.size();
        const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(args.limit);
        exchange_.limit_ns = static_cast<std::uint64_t>(limit.count());
    }

    Result<> connect();

    [[nodiscard]] Rank rank() const override { return host_.rank(); }
    [[nodiscard]] int size() const override { return host_.size(); }

    Result<> all_reduce_sum(std::span<float> data) override {
        kernels::all_reduce_cuda(
            {.exchange = exchange_,
             .data = data.data(),
             .num = static_cast<std::int64_t>(data.size()),
             .stream = stream_}
        );
        return Ok{};
    }
    Result<> gather_columns(View2<const float> part, View2<float> whole) override {
        kernels::gather_columns_cuda(
            {.exchange = exchange_, .part = part, .whole = whole, .stream = stream_}
        );
        return Ok{};
    }
    Result<> broadcast(std::span<std::byte> data) override { return host_.broadcast(data); }
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
        return host_.all_gather(mine, all);
    }
    Result<> barrier() override { return host_.barrier(); }

    Result<> check() override {
        const ExchangeFailure failure = *exchange_.failure;
        if (failure.kind == static_cast<std::uint64_t>(ExchangeFailure::Kind::kNone)) return Ok{};
        return kernels::error_of(failure, exchange_.limit_ns);
    }

  private:
    Result<> make_memory();
    Result<> open_peer(int rank, const Offer& offer);

    Communicator& host_;
    kernels::Stream stream_;
    kernels::DeviceBuffer memory_{};
    kernels::PinnedBuffer failure_{};
    std::vector<kernels::DeviceImport> peers_{};
    Exchange exchange_{};
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
    // A launch has as many blocks on every rank as are there at once on each.
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

}  // namespace

Result<std::unique_ptr<Communicator>> connect_gpu_communicator(const GpuCommunicatorArgs& args) {
    auto communicator = std::make_unique<GpuCommunicator>(args);
    RETURN_IF_ERROR(communicator->connect());
    return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace pitstop::tp_worker
