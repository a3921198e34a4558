// Writes one of a rank's copies of the weights, in a GPU's memory (shard_writer.h). Threads slice
// and convert bytes from the host into page-locked pieces, and send them. A kernel slices and
// converts bytes on the GPU. One stream, which yields to steps, has all this work and the digest,
// which reads the resident bytes (P10).
//
// While passes run, at most kLaunchBytesMax of work is enqueued at a time, with one block for every
// fourth multiprocessor. The stream rests like a thread (pace.h), because staging and decoding
// share the memory's bandwidth. Only one thread fills pieces then.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "base/task_pool.h"
#include "kernels/ops.h"
#include "kernels/runtime/device_memory.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/shard_rows.h"
#include "tp_worker/weights/shard_writer.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// The memory that staging on a GPU needs besides the copies, allocated once: allocating or freeing
// may wait for running work, even a step (CUDA Runtime API, cudaFree).
//
// Thread: the background's, except start_after().
class GpuStaging {
  public:
    // The most work that is enqueued at once: about 30 us of an H200's memory bandwidth.
    static constexpr std::int64_t kLaunchBytesMax = std::int64_t{64} << 20;

    // `pieces` and `ops`, the GPU's, must outlive this object. Errors: kResourceExhausted without
    // memory; kUnsupported if a row of a tensor is larger than a piece.
    static Result<GpuStaging> make(
        const WeightLayout& layout, const kernels::Ops& ops, PinnedPieces& pieces
    );

    // Orders later writes after all work enqueued on `steps`, that is, after the last pass that
    // reads the copy to be overwritten. Called by the loop's thread.
    void start_after(kernels::Stream steps) { pieces_->start_after(steps); }

  private:
    friend class GpuWriter;
    GpuStaging() = default;

    PinnedPieces* pieces_ = nullptr;
    const kernels::Ops* ops_ = nullptr;
    std::int64_t num_sums_ = 0;          // parts of the layout and of a separate head, plus one
    std::int64_t num_jobs_ = 0;          // tensors of the layout, and a separate head
    kernels::DeviceBuffer sums_{};       // [num_sums] Digest, [num_jobs] uint64: non-finite values
    kernels::PinnedBuffer host_sums_{};  // sums_, copied to the host
    kernels::DeviceBuffer scratch_{};    // a piece
    int blocks_max_ = 0;                 // per launch during passes
    kernels::DeviceEvent is_begun_{};    // marks the work since the last rest
    kernels::DeviceEvent is_done_{};
};

class GpuWriter : public ShardWriter {
  public:
    // Both must outlive this object.
    GpuWriter(const StageArgs& args, GpuStaging& gpu);

    Filled fill(std::vector<FillJob> jobs, Keep keep) override;
    Result<Duration> fill_target(std::span<const std::byte> bytes) override;
    void copy_live(const WeightTensor& tensor) override;
    void write(const WeightTensor& tensor, const ShardElements& elements) override;
    std::int64_t count_different(const WeightTensor& tensor, const ShardElements& elements)
        override;

  private:
    // The places of a tensor's sums: the digests of its parts, and the count of non-finite values.
    struct Sums {
        std::int64_t first = 0;
        std::optional<std::int64_t> count{};  // empty: not counted
    };
    struct ResidentRows {
        const WeightTensor& tensor;
        std::int64_t row_begin = 0;  // row of the shard
        std::int64_t num_rows = 0;
        const std::byte* first_row = nullptr;  // the address of that row
    };
    using TakeRows = std::function<Result<>(std::int64_t row, std::int64_t num_rows)>;

    // Shared by the threads that send pieces.
    struct SharedPieces {
        const std::vector<FillJob>& jobs;
        std::vector<RowsOfItem> pieces{};  // an item is a job's index
        std::thread::id first{};           // the thread that also works while passes run
        std::atomic<std::size_t> num_claimed{0};
        std::atomic<bool> is_over{false};
        Mutex mutex{};
        Condition is_all_claimed{};
        // the first piece that failed, and why
        std::optional<std::pair<std::size_t, Error>> error GUARDED_BY(mutex){};
    };

    // Fills the parts that do not come from the host's memory.
    Result<> place(const FillJob& job, Keep keep);
    Result<> for_each_rows(
        const WeightTensor& tensor, std::int64_t bytes_max, const TakeRows& take
    );
    void send_all(const std::vector<FillJob>& jobs, Filled& filled);
    void send_claimed(SharedPieces& shared);
    Result<> send_piece(SharedPieces& shared, std::size_t piece, std::vector<std::byte>& scratch);
    [[nodiscard]] std::int64_t written_bytes(const FillJob& job) const;
    [[nodiscard]] int num_threads_max() const;
    TaskPool& threads();
    Result<> convert(const WeightTensor& rows, const TensorBytes& bytes, std::byte* to);
    Result<> copy_paced(const WeightTensor& tensor);
    Result<> digest_incoming(const FillJob& job, const Sums& sums);
    Result<> digest_sent(const FillJob& job, const TakeRows& digest);
    Result<> digest_resident(const WeightTensor& tensor, const Sums& sums);
    Result<> digest_rows(const ResidentRows& rows, const Sums& sums);
    void read_sums(const std::vector<FillJob>& jobs, const std::vector<Sums>& sums, Filled& filled);
    std::string find_nonfinite(const WeightTensor& tensor);
    template <class F>
    void for_each_piece(const WeightTensor& tensor, const ShardElements& elements, F use);
    [[nodiscard]] Result<> check_dropped() const;
    // Launches work that reads or writes this many bytes of GPU memory, then rests if due. Errors:
    // the stage was dropped.
    template <class F>
    Result<> enqueue(std::int64_t bytes, F launch);
    void wait();
    // Returns the number of blocks that a launch may have now: during passes, most of the
    // GPU is theirs.
    [[nodiscard]] int blocks_max() const { return args_.pace.is_serving() ? gpu_.blocks_max_ : 0; }
    [[nodiscard]] kernels::Stream stream() const { return gpu_.pieces_->stream(); }

    const StageArgs& args_;
    GpuStaging& gpu_;
    Pacer pacer_;
    Duration rested_{};  // rest that is in no result of fill() yet
    std::int64_t bytes_since_rest_ = 0;
    std::optional<TaskPool> threads_{};  // made for the first pieces that several threads send
};

}  // namespace pitstop::tp_worker
