// Fills tensors of a rank's shard from a source, on one thread, one tensor after the other. Each
// piece is copied, sliced and converted into place, digested and checked (host_writer.h).
//
// Thread: one of the writer's threads.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/pace.h"
#include "tp_worker/weights/shard_writer.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class TensorFiller {
  public:
    explicit TensorFiller(const StageArgs& args) : args_(args), pacer_(args.pace) {}

    // Fills the job's tensor; if nothing arrives for it, the tensor is kept (copied from the live
    // copy, or left in place). Its digest is added to the job's parts. Returns false if the stage
    // has ended.
    bool fill(const FillJob& job, bool is_in_place);
    // Adds the digest of this rank's shard of the bytes to the parts, without writing the shard.
    bool digest_incoming(const FillJob& job);

    [[nodiscard]] const Filled& filled() const { return filled_; }

  private:
    void begin(const FillJob& job);
    bool end(const Result<>& result);
    Result<> load(const WeightTensor& tensor, const TensorBytes& bytes);
    Result<> digest_part(const WeightTensor& tensor, std::size_t part, const TensorBytes& bytes);
    Result<> keep(const WeightTensor& tensor, bool is_in_place);
    std::uint64_t copy_live(const WeightTensor& tensor, const WrittenRows& rows);
    std::uint64_t digest(const WeightTensor& tensor, const WrittenRows& rows);
    Result<> written(const WeightTensor& tensor, const WrittenRows& rows);
    void report_nonfinite(const WeightTensor& tensor, std::int64_t begin, std::int64_t num);

    const StageArgs& args_;
    Pacer pacer_;
    Filled filled_{};
    std::size_t index_ = 0;                    // index of the tensor being filled
    std::span<messages::PartDigest> parts_{};  // of the tensor being filled
    bool is_nonfinite_ = false;                // a non-finite value was found and reported
    std::vector<std::byte> scratch_{};
    TimePoint piece_begun_{};
    Duration verify_now_{};  // time for digesting the current piece, without copying
};
}  // namespace pitstop::tp_worker
