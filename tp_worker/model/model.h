// This is the forward pass of one rank: token ids in, KV pages filled, logits out. The same code
// prefills, decodes and scores, so a score is bit for bit what sampling saw (P6): each op sums in
// an order that the batch does not change, and the ranks' parts add up in rank order.
//
//   x = embedding                                                     all-reduce
//   per layer:  x += o(attention(rope(qkv(norm(x)))))                 all-reduce
//               x += down(silu(gate(norm(x))) * up(norm(x)))          all-reduce
//   logits = head(norm(x)) of the rows asked for        each rank has its part of the vocabulary
//
// On a GPU all of it is enqueued, the exchanges too; nothing here waits for a peer.
//
// The residual stream x is fp32 in both modes.
//   kBf16  products of bf16 by bf16: what goes into a product is rounded to bf16 once; KV in bf16.
//          On a GPU q, k, v, gate and up are bf16 as they leave their products, too: half the bytes
//   kFp32  the truth mode: fp32 activations and KV on the bf16 weights
//
// Owns:    activations, rotary tables. Weights and KV are the caller's (engine.h).
// Bounded: nothing is allocated after construction.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/step_rows.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/model/step_graphs.h"
#include "tp_worker/model/step_updates.h"
#include "tp_worker/weights/weight_layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

enum class Compute : std::uint8_t { kBf16, kFp32 };
[[nodiscard]] std::string_view name_of(Compute compute);  // "bf16", "fp32"

struct ModelSizes {
    std::int64_t tokens_max = 0;      // per step
    std::int64_t logit_rows_max = 0;  // per call of logits()
    std::int64_t num_positions = 0;   // per request, at most
    std::int64_t num_pages = 0;
    std::int64_t page_size = 0;          // P, tokens
    std::int64_t num_scratch_pages = 0;  // behind the others, for padding (step_padding.h)
};

// Returns one layer's KV on this rank, data null.
[[nodiscard]] kernels::KvCache kv_of_layer(
    const ModelSizes& sizes, const ModelConfig& config, const ShardShape& shard, Compute compute
);

// Holds a step, ready to run: R rows of T tokens in all. Ranges are checked by the caller
// (step_batch.h).
struct StepBatch {
    std::span<const TokenId> tokens{};            // [T], ids or slots of `sampled`
    const TokenId* sampled = nullptr;             // in the device's memory (kernels/embedding.h)
    std::span<const std::int32_t> positions{};    // [T]
    std::span<const std::int64_t> kv_slots{};     // [T], page * P + offset
    std::span<const std::int32_t> q_starts{};     // [R + 1]
    std::span<const std::int32_t> kv_lens{};      // [R], new tokens included
    std::span<const std::int32_t> page_starts{};  // [R]
    std::span<const PageId> pages{};
    std::span<const SlotId> slots{};  // [R], the rows' requests
    // These belong to a step of decodes, as a GPU has it: R with rows of padding (step_padding.h),
    // which are in none of the arrays before place(). 0: it is another step, or a CPU's.
    std::int64_t num_padded = 0;
    // [L], for a small step with prompts (step_padding.h), whose arrays all have padding but
    // `slots`: the tokens that its logits are of, in order. It is empty for any other step.
    std::span<const std::int32_t> token_rows{};
    std::int32_t kv_len_max = 0;
    std::int32_t q_len_max = 0;  // new tokens of a row; 0: not known
    // It is made by place() on a GPU: what changes of the pages and rows that are there
    // (step_updates.h).
    std::span<const std::int32_t> update{};
    // [T], or empty: 1 where a token's hidden state is infinite or NaN before the last layer's MLP,
    // and so wherever its KV is in any layer (kernels/KERNELS.md); else 0. A step of padded decodes
    // has none: all its tokens have logits, which say it too.
    std::span<std::uint8_t> marks{};
};
// Returns what a batch takes of the transfers (transfers.h).
[[nodiscard]] std::int64_t transfer_bytes(const StepBatch& batch);

// Holds rows of logits where a rank has them: its part of each, and the place of the whole rows.
struct RowLogits {
    View2<float> part{};   // [R, V_rank], rows contiguous; padding included (ShardShape)
    View2<float> whole{};  // [R, V], on rank 0 alone: undefined until it is gathered
                           // (communicator.h); with one rank it is `part`
};

class Model {
  public:
    struct Args {
        const ModelConfig& config;
        ShardShape shard{};
        ModelSizes sizes{};
        std::int64_t num_slots = 0;  // requests that a GPU knows by slot
        Compute compute = Compute::kBf16;
        const Device& device;
        Transfers* transfers = nullptr;
        Communicator* communicator = nullptr;
        std::byte* kv = nullptr;  // [num_layers][kv_bytes(kv_of_layer)]
        bool has_graphs = false;  // padded steps are launched as graphs (step_graphs.h)
        std::int64_t graph_bytes_max = 0;
    };
    // Returns what make() takes of the device's memory; does not depend on sizes.num_pages, kv or
    // transfers.
    [[nodiscard]] static std::int64_t bytes(const Args& args);
    // Errors: kResourceExhausted if the activations cannot be had; kInvalidArgument where requests
    // have more pages than can be numbered.
    static Result<Model> make(const Args& args);

    // Places the step's arrays among the transfers; returns the batch as the ops read it. On a GPU
    // pages go where they changed alone, and so do the rows of a padded step (step_updates.h).
    // REQUIRES: what is placed is run, in this order.
    // Errors: kInvalidArgument where they do not fit, or one request's rows disagree on its pages.
    [[nodiscard]] Result<StepBatch> place(const StepBatch& batch);

    // What follows takes what place() returned. REQUIRES: the transfers were sent.

    // Runs the layers: fills the tokens' KV and leaves the hidden state of all T tokens here.
    // Errors: the communicator's.
    Result<> forward(const StepBatch& placed, const ModelWeights& weights);

    // Computes this rank's logits of `num_rows` tokens of the last forward() by their index in it,
    // which lie where the ops read them: they are in logits_of(num_rows). REQUIRES: num_rows <=
    // logit_rows_max.
    void logits(const std::int32_t* token_rows, std::int64_t num_rows, const ModelWeights& weights);

    // Does forward() and logits(), of every token or of those in token_rows, for a padded batch: as
    // a graph, where one was made of its shape. REQUIRES: at most logit_rows_max rows of logits;
    // its sums may be captured (Communicator::may_capture_sum); `weights` outlive this.
    Result<> run_padded(const StepBatch& placed, const ModelWeights& weights);
    // Makes a graph of a shape that ran without one. REQUIRES: graphs().wants_one().
    Result<> make_graph() { return graphs_.make_one(stream_); }

    // Says where logits are; they are borrowed until the next step.
    [[nodiscard]] RowLogits logits_of(std::int64_t num_rows) const;
    [[nodiscard]] const StepGraphs& graphs() const { return graphs_; }

    // Has the device choose how it multiplies, for every number of rows that a step may have
    // (linear_tuning.h); overwrites the activations. Returns how many products were timed.
    int tune(const ModelWeights& weights);

  private:
    explicit Model(const Args& args, Arena memory);
    // They go from normed to q, k, v; from attended to delta; from normed to gate, up; from gated
    // to delta, of a layer; the head's is last. `parts` outlives what is returned.
    enum class Product : std::uint8_t { kQkv, kO, kGateUp, kDown, kHead };
    using Parts = std::array<kernels::LinearPart, kernels::LinearArgs::kPartsMax>;
    [[nodiscard]] kernels::LinearArgs product(
        Product which,
        const ModelWeights& weights,
        std::size_t layer_index,
        std::int64_t num_rows,
        Parts& parts
    ) const;
    int tune(Product which, const ModelWeights& weights, std::int64_t num_rows);
    void attend(const ModelWeights& weights, std::size_t index, const StepBatch& there);
    void feed_forward(const ModelWeights& weights, std::size_t index, std::int64_t num_tokens);
    void fill_rope_tables(const Device& device);
    void fill_padding();
    void take_rows(StepBatch& placed) const;
    Result<> run_layers(const StepBatch& there, const ModelWeights& weights);
    void run_head_of(
        const std::int32_t* token_rows,
        std::int64_t num_rows,
        bool is_summed,  // x has the last delta
        const ModelWeights& weights
    );
    // Computes the logits of the rows of x, which still lack delta where that is not empty, and
    // have it then.
    void run_head(View2<float> x, View2<const float> delta, const ModelWeights& weights);
    [[nodiscard]] Result<> sum_over_ranks(View2<float> x);

    // Holds the buffers' places in `memory_`; the ranges are fixed by Args.
    struct Buffers {
        View2<float> x{};                // [T, H]
        View2<float> delta{};            // [T, H], a sublayer's output
        kernels::ActView normed{};       // [T, H]
        kernels::ActView q{};            // [T, Q*D]: q, k and v are columns of one matrix, so that
        kernels::ActView k{};            // [T, K*D]  their product is one product where the weights
        kernels::ActView v{};            // [T, K*D]  lie back to back; gate and up likewise
        kernels::ActView rotated{};      // [T, Q*D]: queries as attention reads them
        kernels::ActView attended{};     // [T, Q*D]
        kernels::ActView gate{};         // [T, F]
        kernels::ActView up{};           // [T, F]
        kernels::ActView gated{};        // [T, F]
        View2<float> head_x{};           // [L, H]
        View2<float> head_delta{};       // [L, H]
        kernels::ActView head_normed{};  // [L, H]
        View2<float> head_part{};        // [L, V_rank]
        View2<float> head_whole{};       // [L, V], rank 0; is head_part where there is one rank
        View2<float> cos{};              // [positions, D/2]
        View2<float> sin{};              // [positions, D/2]
        // On a GPU these are the rows of padded steps, and the pages of all requests.
        kernels::StepRowsArgs rows{};
        std::int32_t* q_starts = nullptr;
        std::span<PageId> tables{};
        kernels::Workspace attention{};
        std::uint32_t* arrivals = nullptr;  // attention's, zeros between its calls
        kernels::Workspace linear{};
    };
    class Carver;
    // Lays the buffers out from `memory`; returns the bytes they take. Null: only counts.
    static std::int64_t lay_out(const Args& args, std::byte* memory, Buffers* buffers);
    static void lay_out_rows(const Args& args, Carver& carver, Buffers& b);

    const ModelConfig* config_;
    ShardShape shard_;
    ModelSizes sizes_;
    const kernels::Ops* ops_;
    kernels::Stream stream_;
    Transfers* transfers_;
    Communicator* communicator_;
    std::byte* kv_;
    kernels::KvCache layer_kv_;
    Arena memory_;
    Buffers buffers_{};
    std::optional<StepUpdates> updates_{};  // on a GPU
    bool is_summed_ = false;                // x has the last delta: the last step was of decodes
    bool has_graphs_;
    StepGraphs graphs_;
};

}  // namespace pitstop::tp_worker
