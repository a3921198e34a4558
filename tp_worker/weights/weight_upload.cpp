#include "tp_worker/weights/weight_upload.h"

#include "base/log.h"
#include "kernels/device_memory.h"
#include "tp_worker/weights/weight_loader.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace pitstop {
namespace {

// The loader's pieces are about kChunkBytes: 20 us at 55 GB/s. One is filled while others are on
// their way. Not measured.
constexpr std::int64_t kPieceBytes = 4 * kChunkBytes;
constexpr std::size_t kNumPieces = 4;
constexpr auto kProgressEvery = std::chrono::seconds(1);

class Upload {
  public:
    static Result<Upload> make(const Device& device, std::int64_t bytes_total) {
        Upload upload(device.stream(), bytes_total);
        for (Piece& piece : upload.pieces_) {
            ASSIGN_OR_RETURN(piece.memory, PinnedBuffer::create(kPieceBytes));
            ASSIGN_OR_RETURN(piece.is_sent, DeviceEvent::create());
        }
        return upload;
    }

    void send(std::byte* to, const std::byte* from, std::int64_t bytes) {
        for (std::int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
            const std::int64_t size = std::min(kPieceBytes, bytes - begin);
            Piece& piece = pieces_[num_sent_++ % pieces_.size()];
            piece.is_sent.wait();
            std::memcpy(piece.memory.data(), from + begin, static_cast<std::size_t>(size));
            copy_to_device(to + begin, piece.memory.data(), size, stream_);
            piece.is_sent.record(stream_);
            bytes_sent_ += size;
            if (Clock::now() - last_said_ >= kProgressEvery) say_progress();
        }
    }

    void finish() {
        for (const Piece& piece : pieces_) piece.is_sent.wait();
        say_progress();
    }

  private:
    using Clock = std::chrono::steady_clock;
    struct Piece {
        PinnedBuffer memory{};
        DeviceEvent is_sent{};
    };
    Upload(Stream stream, std::int64_t bytes_total) : stream_(stream), bytes_total_(bytes_total) {}

    void say_progress() {
        last_said_ = Clock::now();
        const std::chrono::duration<double> elapsed = last_said_ - begin_;
        spdlog::info(
            "weights: {:.1f} of {:.1f} MB on the GPU, {:.1f} s",
            static_cast<double>(bytes_sent_) * 1e-6,
            static_cast<double>(bytes_total_) * 1e-6,
            elapsed.count()
        );
    }

    Stream stream_;
    std::int64_t bytes_total_;
    std::int64_t bytes_sent_ = 0;
    std::array<Piece, kNumPieces> pieces_{};
    std::size_t num_sent_ = 0;
    Clock::time_point begin_ = Clock::now();
    Clock::time_point last_said_ = begin_;
};

}  // namespace

Result<> upload_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const Device& device,
    std::byte* arena
) {
    RETURN_IF_ERROR(tensors.check_whole(source));

    std::int64_t bytes_total = 0;
    std::int64_t bytes_max = 0;
    for (const WeightTensor& tensor : layout.tensors()) {
        bytes_total += tensor.bytes();
        bytes_max = std::max(bytes_max, tensor.bytes());
    }
    ASSIGN_OR_RETURN(Upload upload, Upload::make(device, bytes_total));
    ASSIGN_OR_RETURN(Arena shard, Arena::reserve("a tensor on its way to the GPU", bytes_max));
    RETURN_IF_ERROR(shard.commit());
    std::vector<std::byte> scratch;
    for (const WeightTensor& tensor : layout.tensors()) {
        WeightTensor at_start = tensor;
        at_start.offset = 0;
        const StoredTensor* const stored = tensors.find(tensor.name);
        CHECK(stored != nullptr);  // the check found nothing missing
        const std::int64_t row_bytes = tensor.bytes() / tensor.rows;
        const TensorBytes bytes = stored_bytes(tensors.checkpoint(), *stored);
        RETURN_IF_ERROR(load_tensor(
            {.tensor = at_start, .bytes = bytes, .ops = device.host_ops(), .arena = shard.data()},
            scratch,
            [&](const WrittenRows& rows) -> Result<> {
                upload.send(
                    arena + tensor.offset + rows.begin * row_bytes,
                    shard.data() + rows.begin * row_bytes,
                    rows.num * row_bytes
                );
                return Ok{};
            }
        ));
    }
    upload.finish();
    return Ok{};
}

}  // namespace pitstop
