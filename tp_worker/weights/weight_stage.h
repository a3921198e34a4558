// Fills one copy of a rank's weights from a source, checks it and digests the resident bytes: the
// rank's vote (design section 5).
//
//   begin()          writes nothing; checks whether this update may be staged at all
//   stage_tensors()  whole tensors of a source (source.h): every problem that can be found before
//                    the first byte is written is found then, and all of them are listed. A tensor
//                    that arrived before must bring the same bytes
//                    A tensor may arrive by its rows, in ascending order, by several calls
//   finish()         keeps tensors that did not arrive (partial) or reports them; makes the digests
//
// With tied embeddings, the head is another name of the embedding, and trainers send one of them or
// both. The first to arrive fills the embedding; the other must be equal.
//
// The writer (shard_writer.h) copies the bytes into place, a piece at a time, with rests (pace.h).
// A drop is noticed between two pieces.
//
// Thread: the background's, one call at a time.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/update_orders.h"
#include "messages/version_digest.h"
#include "messages/weights.h"
#include "tp_worker/weights/repeated_tensors.h"
#include "tp_worker/weights/row_tensors.h"
#include "tp_worker/weights/shard_writer.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/stage_times.h"
#include "tp_worker/weights/weight_layout.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

class WeightStage {
  public:
    explicit WeightStage(const StageArgs& args);
    WeightStage(const WeightStage&) = delete;  // writer_ has a reference to the stage
    WeightStage& operator=(const WeightStage&) = delete;

    // `target` is the copy to fill, if the constructor did not get it.
    Result<> begin(std::byte* target = nullptr);

    // kAll: no more tensors will follow, so missing ones are a problem before anything is written.
    // After an error only vote() and outcome() may be called.
    enum class Expect { kMore, kAll };
    Result<> stage_tensors(std::span<const Incoming> tensors, Expect expect);
    // Changes elements in place on a copy of the live version, which must be the version that the
    // update was computed from.
    Result<> stage_sparse(std::span<const SparseTensor> tensors);
    // How a whole target in the memory's layout arrives: already in place (an adopted shard), or
    // to be copied.
    enum class Shard { kInPlace, kToCopy };
    Result<> stage_shard(std::span<const std::byte> bytes, Shard shard);
    Result<> finish();

    // Returns the outcome with this result. outcome.phase is kIdle as long as nothing was written.
    [[nodiscard]] messages::RankOutcome outcome(const Result<>& result) const;
    [[nodiscard]] messages::WorkerStaged vote(const Result<>& result) const;

    // Returns the digests of the target's resident bytes. REQUIRES: finish() found no problem.
    [[nodiscard]] const std::vector<messages::PartDigest>& digests() const { return digests_; }

    [[nodiscard]] const StageArgs& args() const { return args_; }
    [[nodiscard]] bool is_dropped() const {
        return args_.is_dropped.load(std::memory_order_relaxed);
    }
    // Called around each job of the stage; the time between two jobs counts as waiting.
    void begin_work() { times_.begin_work(); }
    void end_work() { times_.end_work(); }
    // Adds the time that a source spent on receiving bytes, and on waiting for its sender.
    void add_receive(Duration duration) { times_.add_receive(duration); }
    void add_wait(Duration duration) { times_.add_wait(duration); }
    // From now on the update may end without tensors. Called for a source that names tensors
    // without changes, and for a rollback.
    void allow_none() { needs_tensor_ = false; }

  private:
    [[nodiscard]] std::vector<FillJob> jobs_for(
        std::span<const Incoming> tensors, RepeatedTensors& repeated
    );
    [[nodiscard]] std::vector<FillJob> jobs_for_rows(std::span<const Incoming> tensors);
    [[nodiscard]] std::optional<FillJob> job_for_rows(const Incoming& incoming);
    [[nodiscard]] bool begin_rows(std::string_view name, const WeightTensor& tensor);
    void compare_tied_rows();
    Result<> fill_all(std::vector<FillJob> jobs, Keep keep);
    Result<> keep_others();
    [[nodiscard]] bool is_there(std::size_t tensor) const;
    void record(std::size_t tensor);
    Result<> fail_with_problems();
    [[nodiscard]] std::vector<bool> absent() const;  // by tensor
    void add_missing();
    void note_ignored(std::string_view name);
    void mark_written();
    [[nodiscard]] std::size_t index_of(const WeightTensor& tensor) const;
    [[nodiscard]] std::span<messages::PartDigest> digests_of(std::size_t index);
    Result<> scatter(const SparseTensor& sparse, const WeightTensor& tensor);
    Result<> stage_tied(const SparseTensor& sparse, const WeightTensor& embedding);
    void check_tied();

    enum class State : std::uint8_t { kAbsent, kArrived, kFromHead, kSparse };

    StageArgs args_;
    std::unique_ptr<ShardWriter> writer_{};
    messages::UpdatePhase phase_ = messages::UpdatePhase::kIdle;
    std::vector<State> states_{};                  // by tensor
    std::vector<std::size_t> first_part_{};        // index of each tensor's first part in digests_
    std::vector<messages::PartDigest> digests_{};  // of all tensors, in name order
    std::vector<messages::PartDigest>
        head_digests_{};  // of a tied head that arrived; empty: no head has arrived
    RowTensors by_rows_{};
    std::string_view tied_sparse_{};    // the name whose elements are scattered; empty: none yet
    std::int64_t num_sparse_head_ = 0;  // elements of a tied head
    std::int64_t num_sparse_embedding_ = 0;  // elements of a tied embedding
    std::vector<std::string> problems_{};
    bool needs_tensor_ = false;     // a partial update, of which no tensor has arrived
    std::int64_t num_ignored_ = 0;  // tensors that this model does not use
    std::string first_ignored_{};
    std::int64_t num_tensors_ = 0;
    std::int64_t bytes_ = 0;
    StageTimes times_{};
};

}  // namespace pitstop::tp_worker
