#include "tp_worker/weights/weight_upload.h"

#include "base/log.h"
#include "base/time.h"
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
    std::int64_t bytes_max = 0;
    for (const WeightTensor& tensor : layout.tensors()) {
        bytes_total += tensor.bytes();
        bytes_max = std::max(bytes_max, tensor.bytes());
    }
    Progress progress(bytes_total);
    ASSIGN_OR_RETURN(Arena shard, Arena::reserve("a tensor on its way to the GPU", bytes_max));
    RETURN_IF_ERROR(shard.commit());
    std::vector<std::byte> scratch;
    for (const WeightTensor& tensor : layout.tensors()) {
        WeightTensor at_start = tensor;
        at_start.offset = 0;
        const checkpoint::StoredTensor* const stored = tensors.find(tensor.name);
        CHECK(stored != nullptr);  // the check found nothing missing
        const std::int64_t row_bytes = tensor.bytes() / tensor.rows;
        const TensorBytes bytes = stored_bytes(tensors.checkpoint(), *stored);
        RETURN_IF_ERROR(load_tensor(
            {.tensor = at_start, .bytes = bytes, .ops = device.host_ops(), .arena = shard.data()},
            scratch,
            [&](const WrittenRows& rows) -> Result<> {
                pieces.send(
                    arena + tensor.offset + rows.begin * row_bytes,
                    shard.data() + rows.begin * row_bytes,
                    rows.num * row_bytes
                );
                progress.add(rows.num * row_bytes);
                return Ok{};
            }
        ));
    }
    pieces.wait();
    progress.say();
    return Ok{};
}

}  // namespace pitstop::tp_worker
