// Fills one copy of a rank's weights from what a source delivers, checks it and digests what is
// resident: the rank's vote (design section 5).
//
//   begin()   nothing is written yet; may this update be staged at all
//   take()    tensors of a source (source.h), whole ones: every problem that can be found before
//             the first byte is written is found then, and all of them are listed
//   finish()  what did not arrive stays as it is (partial), or is a problem; the digests
//
// Where embeddings are tied, the head is another name of the embedding: trainers send one of them,
// or both. Whichever comes first fills the embedding, and the other must be the same.
//
// A piece at a time: copied, sliced and converted into its place, digested and looked at for
// non-finite values there while it is in the cache, then a rest (pace.h). Between two pieces a drop
// is noticed.
//
// Thread: the background's, one call at a time; while no pass runs, others of its own beside it.
#pragma once

#include "base/result.h"
#include "base/task_pool.h"
#include "kernels/ops.h"
#include "messages/update_orders.h"
#include "messages/version_digest.h"
#include "messages/weights.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/weights/pace.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

struct StageArgs {
    messages::UpdateId update{};
    const messages::UpdateSpec& spec;
    Rank rank{};
    const WeightLayout& layout;
    const ModelConfig& config;
    const kernels::Ops& ops;
    digest::AddRun add_run = nullptr;  // of the same level
    std::byte* target = nullptr;       // the copy to fill
    const std::byte* live = nullptr;   // the copy that serves; direct: the same
    std::int64_t target_bytes = 0;     // of the target's memory
    // Makes a sealed memfd the target's memory; empty: this stage adopts none.
    std::function<Result<>(int fd)> adopt{};
    const Pace& pace;
    int num_threads = 1;  // when no pass runs; while one does, one
    const std::atomic<bool>& is_dropped;
    std::function<void(std::string_view)> at{};  // named places, for fault tests
};

// A tensor that a source has.
struct Incoming {
    checkpoint::TensorSpec spec{};
    TensorBytes bytes{};
};

// Elements of a tensor that change: a sparse source's. Nothing of it is believed yet.
struct SparseTensor {
    checkpoint::TensorSpec spec{};
    const std::byte* indices = nullptr;  // [num] int32, flat in the whole tensor, any alignment
    const std::byte* values = nullptr;   // [num] of spec.dtype, any alignment
    std::int64_t num = 0;
};

class WeightStage {
  public:
    explicit WeightStage(const StageArgs& args);

    Result<> begin();

    // kAll: there is nothing more to come, so what is missing is a problem before anything is
    // written. After an error the stage is of no use, but for vote() and outcome().
    enum class Expect { kMore, kAll };
    Result<> take(std::span<const Incoming> tensors, Expect expect);
    // In place on a copy of the live version, which must be the one it was made for.
    Result<> take_sparse(std::span<const SparseTensor> tensors);
    // The whole target is in its place already (a shard that was adopted): only verifies.
    Result<> take_target();
    Result<> finish();

    // How far it came, with this result. outcome.phase is kIdle as long as nothing was written.
    [[nodiscard]] messages::RankOutcome outcome(const Result<>& result) const;
    [[nodiscard]] messages::WorkerStaged vote(const Result<>& result) const;

    [[nodiscard]] const StageArgs& args() const { return args_; }
    [[nodiscard]] bool is_dropped() const {
        return args_.is_dropped.load(std::memory_order_relaxed);
    }
    // Time that a source spent waiting for its sender.
    void add_receive(Duration duration) { receive_ += duration; }

  private:
    struct Job {
        std::size_t index = 0;               // of the tensor in the layout
        const Incoming* incoming = nullptr;  // null: kept
        bool is_head_beside = false;  // a tied head, and the embedding comes, too: only digested
    };
    enum class Keep { kCopy, kInPlace };
    Result<> fill_all(std::vector<Job> jobs, Keep keep);
    Result<> fail_with_problems();
    void check_declared(const messages::TensorInfo& declared);
    void add_missing();
    void list_missing(messages::RankOutcome& outcome) const;
    void check_padding(const WeightTensor& tensor);
    void mark_written();
    [[nodiscard]] std::size_t index_of(const WeightTensor& tensor) const;
    [[nodiscard]] std::span<messages::PartDigest> digests_of(std::size_t index);
    Result<> scatter(const SparseTensor& sparse, const WeightTensor& tensor);
    Result<> take_tied(const SparseTensor& sparse, const WeightTensor& embedding);
    void check_tied();

    enum class State : std::uint8_t { kAbsent, kArrived, kFromHead, kSparse };

    // Made with the first work that is worth a second thread.
    TaskPool& threads();

    StageArgs args_;
    std::optional<TaskPool> threads_{};
    messages::UpdatePhase phase_ = messages::UpdatePhase::kIdle;
    std::vector<State> states_{};                  // by tensor
    std::vector<std::size_t> first_part_{};        // of each tensor, in digests_
    std::vector<messages::PartDigest> digests_{};  // of everything, in name order
    std::vector<messages::PartDigest>
        head_digests_{};                     // of a tied head that arrived; empty: none did
    std::string_view tied_sparse_{};         // which of the two names is scattered; empty: none yet
    std::int64_t num_sparse_head_ = 0;       // elements, of a tied head
    std::int64_t num_sparse_embedding_ = 0;  // elements, of the embedding beside it
    std::vector<std::string> problems_{};
    std::int64_t num_tensors_ = 0;
    std::int64_t bytes_ = 0;
    Duration receive_{};
    Duration verify_{};
};

}  // namespace pitstop::tp_worker
