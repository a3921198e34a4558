// The forward pass of one rank: token ids in, KV pages filled, logits out. The same code prefills,
// decodes and scores, so a score has the bits that sampling has (P6). Each op sums in an order that
// the batch does not change, and the ranks' parts add up in rank order.
//
// On a GPU all of it is enqueued, including the exchanges; nothing here waits for a peer.
//
// Blocks decide what is computed (blocks/stack.h). The model places a step, runs it through the
// blocks, and makes its rows of logits; a shape of steps that may recur becomes a graph.
//
// Owns:    the buffers of blocks. Weights and KV are the caller's (engine.h).
// Bounded: nothing is allocated after construction.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/step_rows.h"
#include "tp_worker/blocks/product_tuning.h"
#include "tp_worker/blocks/stack.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/model/step_graphs.h"
#include "tp_worker/model/step_updates.h"
#include "tp_worker/ranks/communicator.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Returns the bytes that a batch takes of the transfers (transfers.h).
[[nodiscard]] std::int64_t transfer_bytes(const StepBatch& batch);

class Model {
  public:
    struct Args {
        const Stack& stack;
        ModelSizes sizes{};
        std::int64_t num_slots = 0;  // requests that a GPU knows by slot
        Compute compute = Compute::kBf16;
        bool rounds_expert_weights = false;
        const Device& device;
        Transfers* transfers = nullptr;
        Communicator* communicator = nullptr;
        std::byte* kv = nullptr;      // the memory of KvPool, for these sizes
        std::byte* states = nullptr;  // the memory of StatePool
        bool has_graphs = false;      // padded steps are launched as graphs (step_graphs.h)
        std::int64_t graph_bytes_max = 0;
    };
    // Returns the device memory that make() needs; does not depend on sizes.num_pages, kv
    // or transfers.
    [[nodiscard]] static std::int64_t bytes(const Args& args);
    // Errors: kResourceExhausted if the activations cannot be allocated; kInvalidArgument if
    // requests have more pages than can be numbered.
    static Result<Model> make(const Args& args);

    // Places the step's arrays among the transfers; returns the batch as the ops read it. On a GPU,
    // only changed pages are uploaded, and only changed rows of a padded step (step_updates.h).
    // REQUIRES: batches are run in the order in which they are placed. Errors: kInvalidArgument if
    // the arrays do not fit, or one request's rows disagree on its pages.
    [[nodiscard]] Result<StepBatch> place(const StepBatch& batch);

    // The functions below take a batch that place() returned. REQUIRES: the transfers were sent.

    // Runs the layers: fills the tokens' KV and leaves the hidden state of all T tokens here.
    // Errors: the communicator's.
    Result<> forward(const StepBatch& placed, const BoundWeights& weights);

    // Computes this rank's logits of `num_rows` tokens of the last forward() into
    // logits_of(num_rows). `token_rows`, in the ops' memory, are the tokens' indices in that pass.
    // REQUIRES: num_rows <= logit_rows_max.
    void logits(const std::int32_t* token_rows, std::int64_t num_rows, const BoundWeights& weights);

    // Runs forward() and logits(), of every token or of those in token_rows, for a padded batch: as
    // a graph, if its shape has one. REQUIRES: at most logit_rows_max rows of logits; its sums may
    // be captured (Communicator::may_capture_sum); `weights` outlive this.
    Result<> run_padded(const StepBatch& placed, const BoundWeights& weights);
    // Makes a graph of a shape that ran without one. REQUIRES: graphs().wants_one().
    Result<> make_graph() { return graphs_.make_one(stream_); }

    // Advances the states by the right drafts of the last pass (DraftReplay::make). Waits for a
    // GPU. REQUIRES: `replay` is not placed; no array waits to be sent.
    void replay(const StepBatch& replay, const BoundWeights& weights);

    // Returns where the logits are; borrowed until the next step.
    [[nodiscard]] RowLogits logits_of(std::int64_t num_rows) const {
        return stack_.head().logits_of(num_rows);
    }
    // The choices of the last step's routers, in the device's memory; empty without routers.
    [[nodiscard]] const std::optional<Choices>& choices() const { return stack_.choices(); }
    [[nodiscard]] const StepGraphs& graphs() const { return graphs_; }

    // Lets the device choose how it multiplies, for every number of rows that a step may have
    // (linear_tuning.h); overwrites the activations. Returns how many products were timed.
    int tune(const BoundWeights& weights) { return tune_products(stack_, weights); }

  private:
    Model(const Args& args, Stack stack, Scratch& scratch, Arena memory);
    void fill_padding();
    void place_rows(StepBatch& placed) const;
    Result<> run_blocks(const StepBatch& there, const BoundWeights& weights);
    void run_head_of(
        const std::int32_t* token_rows,
        std::int64_t num_rows,
        bool is_summed,  // x includes the last delta
        const BoundWeights& weights
    );

    // On a GPU: the rows of padded steps, and the pages of all requests.
    struct Rows {
        kernels::StepRowsArgs args{};
        std::span<std::int32_t> q_starts{};
        std::span<PageId> tables{};

        void ask(const Args& args, Scratch& scratch);
    };

    Stack stack_;
    ModelSizes sizes_;
    const kernels::Ops* ops_;
    kernels::Stream stream_;
    Transfers* transfers_;
    Communicator* communicator_;
    Arena memory_;
    Rows rows_{};
    std::optional<StepUpdates> updates_{};  // on a GPU
    bool is_summed_ = false;  // x includes the last delta, because the last step had only decodes
    bool has_graphs_;
    StepGraphs graphs_;
};

}  // namespace pitstop::tp_worker
