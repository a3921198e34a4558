#include "tp_worker/weights/weight_upload.h"

#include "base/log.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "base/time.h"
#include "tp_worker/weights/shard_rows.h"
#include "tp_worker/weights/weight_loader.h"

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr auto kProgressEvery = std::chrono::seconds(1);

class Progress {
  public:
    explicit Progress(std::int64_t bytes_total) : bytes_total_(bytes_total) {}

    void add(std::int64_t bytes) {
        {
            const MutexLock lock(mutex_);
            bytes_sent_ += bytes;
            if (Clock::now() - last_said_ < kProgressEvery) return;
            last_said_ = Clock::now();
        }
        say();
    }

    void say() {
        std::int64_t bytes_sent = 0;
        {
            const MutexLock lock(mutex_);
            bytes_sent = bytes_sent_;
        }
        spdlog::info(
            "weights: {:.1f} of {:.1f} MB on the GPU, {:.1f} s",
            static_cast<double>(bytes_sent) * 1e-6,
            static_cast<double>(bytes_total_) * 1e-6,
            seconds(Clock::now() - begin_)
        );
    }

  private:
    std::int64_t bytes_total_;
    TimePoint begin_ = Clock::now();
    Mutex mutex_{};
    std::int64_t bytes_sent_ GUARDED_BY(mutex_) = 0;
    TimePoint last_said_ GUARDED_BY(mutex_) = begin_;
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
    std::vector<TensorBytes> sources;
    std::vector<RowsOfItem> rows;
    for (const WeightTensor& tensor : layout.tensors()) {
        bytes_total += tensor.bytes();
        add_pieces(tensor, sources.size(), rows);
        sources.push_back(tensors.bytes_for(tensor.name));
    }
    Progress progress(bytes_total);
    const auto send = [&](const RowsOfItem& piece, std::vector<std::byte>& scratch) -> Result<> {
        const WeightTensor& tensor = layout.tensors()[piece.item];
        RETURN_IF_ERROR(send_rows(
            {.tensor = tensor,
             .bytes = sources[piece.item],
             .rows = piece,
             .ops = device.host_ops(),
             .pieces = pieces,
             .arena = arena},
            scratch,
            [](const WrittenRows&) { return Result<>(Ok{}); }
        ));
        progress.add(piece.num_rows * tensor.row_bytes());
        return Ok{};
    };
    TaskPool threads(pieces.num_threads());
    std::atomic<std::size_t> next = 0;  // index of the next piece; threads claim pieces in order
    Result<> sent =
        threads.run(static_cast<std::size_t>(pieces.num_threads()), [&](std::size_t) -> Result<> {
            std::vector<std::byte> scratch;
            for (std::size_t i = next++; i < rows.size(); i = next++) {
                Result<> done = send(rows[i], scratch);
                if (done) continue;
                next = rows.size();  // so that the other threads end
                return done;
            }
            return Ok{};
        });
    pieces.wait();
    RETURN_IF_ERROR(std::move(sent));
    progress.say();
    return Ok{};
}

}  // namespace pitstop::tp_worker
