#include "tp_worker/ranks/nodes_communicator.h"

#include "base/check.h"
#include "base/log.h"
#include "kernels/runtime/device_memory.h"
#include "tp_worker/ranks/rank_nccl.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr auto kTurnLook = std::chrono::milliseconds(1);  // between two tries to take NCCL's turn

class NodesCommunicator final : public Communicator {
  public:
    explicit NodesCommunicator(const NodesCommunicatorArgs& args) : args_(args) {}

    Result<> connect();

    [[nodiscard]] Rank rank() const override { return args_.host.rank(); }
    [[nodiscard]] int size() const override { return args_.host.size(); }
    [[nodiscard]] int num_on_machine() const override { return args_.host.num_on_machine(); }

    Result<> all_reduce_sum(std::span<float> data) override {
        return in_turn([&] { return nccl_->all_reduce_sum(data); });
    }
    Result<> gather_columns(View2<const float> part, View2<float> whole) override;
    Result<> all_gather_records(std::span<const std::byte> mine, std::span<std::byte> all)
        override {
        CHECK(all.size() == mine.size() * static_cast<std::size_t>(size()));
        return in_turn([&] { return nccl_->all_gather(mine, all.data()); });
    }
    Result<> broadcast(std::span<std::byte> data) override { return args_.host.broadcast(data); }
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
        return args_.host.all_gather(mine, all);
    }
    Result<> barrier() override { return args_.host.barrier(); }
    Result<> barrier_within(Duration limit) override { return args_.host.barrier_within(limit); }

    [[nodiscard]] bool may_be_captured() const override { return false; }
    Result<> begin_sums(std::int64_t /*bytes*/) override { return begin(); }
    Result<> finish_sums() override { return nccl_->finish_step(); }

    [[nodiscard]] std::string describe() const override {
        return fmt::format(
            "sums over the ranks of {} machines: NCCL {}",
            size() / num_on_machine(),
            nccl_->version()
        );
    }

  private:
    Result<> begin();
    Result<> try_sum();
    Result<> gather_piece(View2<const float> part, View2<float> whole);
    // Enqueues within a step's turn, or in a turn of its own.
    template <class Enqueue>
    Result<> in_turn(Enqueue enqueue) {
        if (nccl_->is_in_use()) return enqueue();
        RETURN_IF_ERROR(begin());
        RETURN_IF_ERROR(enqueue());
        return nccl_->finish_step();
    }

    NodesCommunicatorArgs args_;
    kernels::DeviceBuffer columns_{};  // [size, rows of a piece, C]
    std::unique_ptr<RankNccl> nccl_{};
};

Result<> NodesCommunicator::connect() {
    args_.nccl_turn->bound(args_.limit / kTrainerShare);
    ASSIGN_OR_RETURN(columns_, kernels::DeviceBuffer::create(kColumnBytes));
    ASSIGN_OR_RETURN(
        RankNccl::Connected connected,
        RankNccl::connect(
            {.host = args_.host,
             .bus = args_.host,
             .turn = args_.nccl_turn,
             .stream = args_.stream,
             .limit = args_.limit}
        )
    );
    if (!connected.nccl) {
        return make_error(
            ErrorCode::kUnsupported,
            "ranks on {} machines need NCCL between them: {}",
            size() / num_on_machine(),
            connected.why_not
        );
    }
    nccl_ = std::move(connected.nccl);
    return try_sum();
}

// The first sum allocates what NCCL needs for sums, so a failure is known before serving.
Result<> NodesCommunicator::try_sum() {
    constexpr std::int64_t kBytes = 4096;
    kernels::fill_device(columns_.data(), 0, kBytes, args_.stream);
    return all_reduce_sum(
        {static_cast<float*>(columns_.data()), static_cast<std::size_t>(kBytes) / sizeof(float)}
    );
}

// The ranks agree on each try, so that all continue with the same try.
Result<> NodesCommunicator::begin() {
    const TimePoint deadline = Clock::now() + args_.limit;
    while (true) {
        RETURN_IF_ERROR(nccl_->begin_step());
        if (nccl_->is_in_use()) return Ok{};
        if (Clock::now() >= deadline) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "a step waited {} ms for NCCL, which a trainer's group had in use",
                std::chrono::duration_cast<std::chrono::milliseconds>(args_.limit).count()
            );
        }
        std::this_thread::sleep_for(kTurnLook);
    }
}

Result<> NodesCommunicator::gather_columns(View2<const float> part, View2<float> whole) {
    CHECK(part.stride == part.cols);
    const std::int64_t row_bytes = size() * part.cols * std::int64_t{sizeof(float)};
    if (row_bytes > kColumnBytes) {
        return make_error(
            ErrorCode::kUnsupported,
            "a row of logits has {} bytes; over several machines at most {} are accepted",
            row_bytes,
            kColumnBytes
        );
    }
    return in_turn([&]() -> Result<> {
        const std::int64_t num_at_once = kColumnBytes / std::max<std::int64_t>(row_bytes, 1);
        for (std::int64_t begin = 0; begin < part.rows; begin += num_at_once) {
            const std::int64_t num = std::min(num_at_once, part.rows - begin);
            const View2<float> piece = raw(rank()) == 0 ? rows(whole, begin, num) : View2<float>{};
            RETURN_IF_ERROR(gather_piece(rows(part, begin, num), piece));
        }
        return Ok{};
    });
}

Result<> NodesCommunicator::gather_piece(View2<const float> part, View2<float> whole) {
    const std::int64_t num_floats = part.rows * part.cols;
    auto* const gathered = static_cast<float*>(columns_.data());
    RETURN_IF_ERROR(nccl_->all_gather(
        std::as_bytes(std::span(part.data, static_cast<std::size_t>(num_floats))),
        static_cast<std::byte*>(columns_.data())
    ));
    for (int of = 0; raw(rank()) == 0 && of < size(); ++of) {
        const std::int64_t first_col = of * part.cols;
        const std::int64_t num_cols = std::min(part.cols, whole.cols - first_col);
        if (num_cols <= 0) break;
        kernels::copy_rows_on_device(
            {.data = gathered + of * num_floats,
             .rows = part.rows,
             .cols = num_cols,
             .stride = part.cols},
            {.data = whole.data + first_col,
             .rows = part.rows,
             .cols = num_cols,
             .stride = whole.stride},
            args_.stream
        );
    }
    return Ok{};
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect_nodes_communicator(const NodesCommunicatorArgs& args
) {
    auto communicator = std::make_unique<NodesCommunicator>(args);
    RETURN_IF_ERROR(communicator->connect());
    spdlog::info("{}", communicator->describe());
    return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace pitstop::tp_worker
