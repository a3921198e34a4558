// Writes a copy of the weights in a GPU's memory (shard_writer.h). Bytes of the host are sliced and
// converted on their way into page-locked pieces, and sent; bytes of the GPU are sliced and
// converted by a kernel where they are. All of it is enqueued on one stream that gives way to
// steps, and so is the digest, of what is resident when it is there (P10).
//
// While passes run, the stream is given kLaunchBytesMax of work at a time, by a block for every
// fourth multiprocessor, and rests as a thread does (pace.h): what staging reads and writes,
// decoding cannot.
#pragma once

#include "base/result.h"
#include "base/task_pool.h"
#include "kernels/device_memory.h"
#include "kernels/ops.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/shard_writer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

// Holds what staging on a GPU needs beside the copies, taken once: to allocate or free on a GPU may
// wait for what runs there, a step too (CUDA Runtime API, cudaFree).
//
// Thread: the background's, but for start_after().
class GpuStaging {
  public:
    // This is the largest piece of work that is enqueued at once: some 30 us of an H200's memory.
    static constexpr std::int64_t kLaunchBytesMax = std::int64_t{64} << 20;

    // `pieces` and `ops`, the GPU's, outlive it. Errors: kResourceExhausted, no memory for it;
    // kUnsupported, a row of a tensor is more than a piece.
    static Result<GpuStaging> make(
        const WeightLayout& layout, const kernels::Ops& ops, PinnedPieces& pieces
    );

    // What is staged from now on is written after what `steps` has been given: the last pass that
    // read the copy that is overwritten. The loop's thread.
    void start_after(kernels::Stream steps) { pieces_->start_after(steps); }

  private:
    friend class GpuWriter;
    GpuStaging() = default;

    PinnedPieces* pieces_ = nullptr;
    const kernels::Ops* ops_ = nullptr;
    std::int64_t num_sums_ = 0;          // parts of the whole layout, and of a head beside it
    std::int64_t num_jobs_ = 0;          // tensors of the layout, and a head
    kernels::DeviceBuffer sums_{};       // [num_sums] Digest, [num_jobs] uint64: non-finite values
    kernels::PinnedBuffer host_sums_{};  // the same, on the host
    kernels::DeviceBuffer scratch_{};    // a piece
    int blocks_max_ = 0;                 // per launch beside passes
    kernels::DeviceEvent is_begun_{};    // marks the work since the last rest
    kernels::DeviceEvent is_done_{};
};

class GpuWriter : public ShardWriter {
  public:
    // Both outlive it.
    GpuWriter(const StageArgs& args, GpuStaging& gpu);

    Filled fill(std::vector<FillJob> jobs, Keep keep) override;
    Result<Duration> fill_target(std::span<const std::byte> bytes) override;
    void copy_live(const WeightTensor& tensor) override;
    void write(const WeightTensor& tensor, const ShardElements& elements) override;
    std::int64_t count_different(const WeightTensor& tensor, const ShardElements& elements)
        override;

  private:
    // Says where the digests of a tensor's parts are added up, and its values that are not finite.
    struct Sums {
        std::int64_t first = 0;
        std::optional<std::int64_t> count{};  // empty: they are not counted
    };
    struct ResidentRows {
        const WeightTensor& tensor;
        std::int64_t row_begin = 0;  // row of the shard
        std::int64_t num_rows = 0;
        const std::byte* first_row = nullptr;  // where that row is
    };
    using TakeRows = std::function<Result<>(std::int64_t row, std::int64_t num_rows)>;

    Result<> place(const FillJob& job, Keep keep, Filled& filled);
    Result<> for_each_rows(
        const WeightTensor& tensor, std::int64_t bytes_max, const TakeRows& take
    );
    Result<> send(const WeightTensor& tensor, const TensorBytes& bytes, const TakeRows& take);
    Result<> fill_piece(const WeightTensor& rows, const TensorBytes& bytes, std::byte* piece);
    Result<> convert(const WeightTensor& rows, const TensorBytes& bytes, std::byte* to);
    Result<> copy_paced(const WeightTensor& tensor);
    Result<> digest_incoming(const FillJob& job, const Sums& sums);
    Result<> digest_resident(const WeightTensor& tensor, const Sums& sums);
    Result<> digest_rows(const ResidentRows& rows, const Sums& sums);
    void read_sums(const std::vector<FillJob>& jobs, const std::vector<Sums>& sums, Filled& filled);
    std::string find_nonfinite(const WeightTensor& tensor);
    template <class F>
    void for_each_piece(const WeightTensor& tensor, const ShardElements& elements, F use);
    [[nodiscard]] Result<> check_dropped() const;
    // Launches what reads and writes so many bytes of the GPU's memory, then rests if it is time.
    // Errors: the stage was dropped.
    template <class F>
    Result<> enqueue(std::int64_t bytes, F launch);
    void wait();
    // Returns how many blocks a launch may have now: beside passes most of the GPU is theirs.
    [[nodiscard]] int blocks_max() const { return args_.pace.is_serving() ? gpu_.blocks_max_ : 0; }
    [[nodiscard]] kernels::Stream stream() const { return gpu_.pieces_->stream(); }

    const StageArgs& args_;
    GpuStaging& gpu_;
    Pacer pacer_;
    Duration rested_{};  // what filling has not come to count yet
    std::int64_t bytes_since_rest_ = 0;
    std::vector<std::byte> scratch_{};
    std::optional<TaskPool> threads_{};  // made with the first piece that they share
};

}  // namespace pitstop::tp_worker
