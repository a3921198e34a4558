#include "tp_worker/weights/weight_upload.h"

#include "base/log.h"
#include "base/task_pool.h"
#include "base/time.h"
#include "kernels/thread_pool.h"
#include "tp_worker/weights/shard_rows.h"
#include "tp_worker/weights/weight_loader.h"

#include <algorithm>
#include <chrono>

namespace pitstop::tp_worker {
namespace {

constexpr auto kProgressEvery = std::chrono::seconds(1);

class Progress {
  public:
    explicit Progress(std::int64_t bytes_total) : bytes_total_(bytes_total) {}

    void add(std::int64_t bytes) {
        bytes_sent_ += bytes;
        if (Clock::now() - last_said_ >= kProgressEvery) say();
    }

    void say() {
        last_said_ = Clock::now();
        spdlog::info(
            "weights: {:.1f} of {:.1f} MB on the GPU, {:.1f} s",
            static_cast<double>(bytes_sent_) * 1e-6,
            static_cast<double>(bytes_total_) * 1e-6,
            seconds(last_said_ - begin_)
        );
    }

  private:
    std::int64_t bytes_total_;
    std::int64_t bytes_sent_ = 0;
    TimePoint begin_ = Clock::now();
    TimePoint last_said_ = begin_;
};

}  // namespace

Result<> upload_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const Device& device,
    PinnedPieces& pieces,
    std::byte* arena
) {
    RETURN_IF_ERROR(tensors.check_whole(source));

    std::int64_t bytes_total = 0;
    for (const WeightTensor& tensor : layout.tensors()) bytes_total += tensor.bytes();
    Progress progress(bytes_total);
    TaskPool threads(kernels::num_threads_of(device.host_stream()));
    std::vector<std::byte> scratch;
    const auto go_on = [](const WrittenRows&) { return Result<>(Ok{}); };
    for (const WeightTensor& tensor : layout.tensors()) {
        const checkpoint::StoredTensor* const stored = tensors.find(tensor.name);
        CHECK(stored != nullptr);  // the check found nothing missing
        const TensorBytes bytes = stored_bytes(tensors.checkpoint(), *stored);
        const std::int64_t row_bytes = tensor.row_bytes();
        CHECK(row_bytes <= PinnedPieces::kPieceBytes);  // GpuStaging::make refused others
        const std::int64_t rows_max = PinnedPieces::kPieceBytes / row_bytes;
        const std::int64_t num_rows = num_filled_rows(tensor);
        for (std::int64_t row = 0; row < num_rows; row += rows_max) {
            const WeightTensor rows = cut_rows(tensor, row, std::min(rows_max, num_rows - row));
            const LoadTensorArgs args{
                .tensor = rows, .bytes = bytes, .ops = device.host_ops(), .arena = pieces.next()};
            // One thread fills a piece at a fraction of what the bus carries.
            const bool is_shared = bytes.data != nullptr && is_worth_sharing(rows);
            RETURN_IF_ERROR(
                is_shared ? load_shared(threads, args, go_on) : load_tensor(args, scratch, go_on)
            );
            pieces.send_next(arena + tensor.offset + row * row_bytes, rows.bytes());
            progress.add(rows.bytes());
        }
    }
    pieces.wait();
    progress.say();
    return Ok{};
}

}  // namespace pitstop::tp_worker
