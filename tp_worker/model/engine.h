// One rank without its sockets: its weights, its KV memory, the forward pass and the sampler. A
// plan goes in, a result comes out.
//
// On a GPU two steps may be in progress: the second is enqueued behind the first while that runs,
// and reads the first one's draws from the device's memory. Results have the same bits as
// with one step at a time.
//
// Over 500 lines: loading, sizes and steps are each a file (engine.cpp, engine_sizes.cpp,
// engine_steps.cpp) over the same members. The members depend on each other in the order of their
// declaration, and a step in progress uses nearly all of them.
//
// Owns:   everything of the rank but the thread pool and the communicator's peers.
// Thread: one.
// Every rank of a replica runs the same plans in the same order; only rank 0's results have
// numbers.
#pragma once

#include "base/ids.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/time.h"
#include "kernels/ops.h"
#include "kernels/runtime/thread_pool.h"
#include "messages/steps.h"
#include "tp_worker/blocks/kv_pool.h"
#include "tp_worker/blocks/stack.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/groups/nccl_turn.h"
#include "tp_worker/model/adapters.h"
#include "tp_worker/model/grammars.h"
#include "tp_worker/model/kv_ahead.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/sampler.h"
#include "tp_worker/model/step_adapters.h"
#include "tp_worker/model/step_batch.h"
#include "tp_worker/model/step_states.h"
#include "tp_worker/model/update_room.h"
#include "tp_worker/ranks/communicator.h"
#include "tp_worker/ranks/sum_choice.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_store.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

enum class LoadFormat : std::uint8_t {
    kAuto,  // the checkpoint's safetensors
    kNull,  // only config.json; see null_model.h
};

struct EngineOptions {
    std::string model_dir{};
    bool awaits_weights = false;  // loads no weights: the first complete update brings them
    std::string weights_dir{};  // a checkpoint of the same shape to load instead; empty: model_dir
    LoadFormat load_format = LoadFormat::kAuto;
    ExtraTensors extra_tensors = ExtraTensors::kRefuse;  // in checkpoints and in updates
    Compute compute = Compute::kBf16;
    int ep = 1;                          // groups of ranks over which experts are divided (RankOf)
    bool rounds_expert_weights = false;  // to bf16, before the sum over a token's experts
    IsaLevel isa = IsaLevel::kScalar;
    DeviceKind device = DeviceKind::kCpu;
    std::string device_why{};  // if --device auto chose this device: the reason
    int gpu = 0;
    Determinism determinism = Determinism::kFast;
    SumPath sums = SumPath::kAuto;  // between ranks on GPUs
    // The ranks' connection through their scheduler, which carries the id of NCCL's communicator;
    // null: the ranks' own communicator carries it.
    Communicator* bus = nullptr;
    bool has_graphs = true;                      // on a GPU: steps are CUDA graphs (step_padding.h)
    double mem_fraction = 0.9;                   // the part of the GPU's free memory for this rank
    UpdateRoom update_room = UpdateRoom::kAuto;  // on a GPU; otherwise unused
    std::int64_t page_size = 16;                 // tokens
    std::int64_t max_total_tokens = 0;           // of KV; 0: set by kv_share or mem_fraction
    double kv_share = 0.25;                      // part of host memory, for all ranks' KV together
    std::int64_t context_len = 0;                // 0: the model's
    std::int64_t adapter_rank_max = 64;          // of adapters; 0: the rank computes none
    std::int64_t adapter_memory = 0;             // bytes for adapters; 0: no limit
    std::string tuning_dir{};  // with cuda: where timed choices are kept (linear_tuning.h); empty:
                               // nothing is timed
    std::int64_t num_slots = 256;      // requests that may run at once
    std::int64_t num_checkpoints = 0;  // of recurrent states; 0: chosen from kv_share's bytes
    std::int64_t tokens_per_step_max = 8192;
    Duration step_timeout =
        kernels::kDeviceWaitMax;  // on a GPU: a step that takes longer is assumed never to end (P5)
    Duration exchange_limit =
        kernels::kDeviceWaitMax;  // on GPUs: how long a rank waits for another within a step
    // Called with the reason if the checkpoint cannot be loaded, before load() fails.
    std::function<void(const Error&)> weights_are_lost{};
};

inline constexpr std::int64_t kLeastKvBytes = std::int64_t{1}
                                              << 30;  // the default, for all ranks together
// Logits are computed in parts of at most this many bytes. On a GPU each part costs a round trip,
// and there is room for larger ones.
inline constexpr std::int64_t kLogitBytesMax = std::int64_t{64} << 20;
inline constexpr std::int64_t kGpuLogitBytesMax = std::int64_t{512} << 20;
inline constexpr std::int64_t kLogitRowsMax = 512;
// The part of a GPU's free memory at the start that is for graphs of steps: 550 MB of an H200's.
inline constexpr std::int64_t kGraphShare = 256;

class Engine {
  public:
    // `threads` and `communicator`, which numbers the ranks, outlive the engine.
    // Errors: anything missing or wrong in the directory; unsupported models; no memory.
    // Ranks do not wait for each other here. If a rank fails to load, its peers find it gone.
    static Result<std::unique_ptr<Engine>> load(
        const EngineOptions& options, kernels::ThreadPool& threads, Communicator& communicator
    );

    // Waits for the steps in progress.
    ~Engine();
    // Called first when a rank ends regularly. A peer may still read this rank's memory, so the
    // ranks meet once more when their steps are done; a rank that is late by more than a moment
    // counts as gone.
    void leave();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // The most steps in progress at once.
    static constexpr std::size_t kStepsMax = 2;

    // Enqueues a step; if only one may be in progress, it is done when this returns.
    // REQUIRES: invalid(plan) found nothing; fewer than kStepsMax are in progress, none if
    // runs_ahead() is false.
    // Errors: kInvalidArgument (a range this worker does not have), kFailedPrecondition (another
    // epoch's plan: P1), or the communicator's. After any of them the rank is out of step with its
    // peers and must end.
    [[nodiscard]] Result<> start(const messages::StepPlan& plan);
    // Waits for the step started first, and returns its result. REQUIRES: one is in progress.
    // Errors: the communicator's.
    [[nodiscard]] Result<messages::StepResult> finish();
    // Returns how many steps were started and not finished.
    [[nodiscard]] std::size_t num_under_way() const { return num_under_way_; }
    // Returns whether finish() would return at once: the step is done, or its time is over, which
    // finish() reports. REQUIRES: one is in progress.
    [[nodiscard]] bool is_over() const;
    // Returns whether a step may be started while another is in progress, as on a GPU. Ranks do not
    // meet on the host after a step. Ranks meet at the start of some steps, before their sums
    // (rank_nccl.h), and all ranks start steps in the same order.
    [[nodiscard]] bool runs_ahead() const { return device_.is_cuda() && model_.has_value(); }

    // Does start() and finish().
    Result<messages::StepResult> run(const messages::StepPlan& plan);

    // For tests and tools: reads the last step's logits of every token, a chunk of rows at a time,
    // on rank 0.
    // REQUIRES: no step is in progress.
    Result<std::vector<float>> read_logits(std::span<const std::int32_t> token_rows);

    [[nodiscard]] messages::WorkerHello describe() const;
    [[nodiscard]] const ModelConfig& config() const { return config_; }
    // Returns the shape of a row of routes; nothing if none are reported, as by a model without
    // experts and by the null model.
    [[nodiscard]] std::optional<messages::RouteShape> routes() const;
    // Returns the layers without experts, ascending, of a model that has experts in others.
    [[nodiscard]] std::vector<std::int64_t> dense_layers() const;
    [[nodiscard]] const WeightLayout& layout() const { return layout_; }
    [[nodiscard]] Epoch epoch() const { return epoch_; }
    [[nodiscard]] Rank rank() const { return communicator_.rank(); }
    [[nodiscard]] int tp() const { return communicator_.size(); }
    [[nodiscard]] int num_threads() const { return kernels::num_threads_of(device_.host_stream()); }
    [[nodiscard]] const Device& device() const { return device_; }
    // Returns the turn to use NCCL in this process, which steps and trainers' groups share.
    [[nodiscard]] const std::shared_ptr<NcclTurn>& nccl_turn() const { return nccl_turn_; }
    // Returns the ops for weights in host memory, which stage them.
    [[nodiscard]] const kernels::Ops& ops() const { return device_.host_ops(); }

    // Returns the graphs of this engine's steps, only for their thread; null with the null model.
    [[nodiscard]] const StepGraphs* graphs() const { return model_ ? &model_->graphs() : nullptr; }

    // Returns whether make_graph() has work: steps of some shape run without a graph although there
    // is room for one.
    [[nodiscard]] bool wants_graph() const { return model_ && model_->graphs().wants_one(); }
    // Captures the steps of one shape, when the rank has nothing else to do. Steps may be in
    // progress, and continue meanwhile; nothing is launched. Ranks may differ in their graphs: a
    // step launches the same kernels with and without. Errors: the communicator's.
    [[nodiscard]] Result<> make_graph() { return model_->make_graph(); }

    // Returns the bytes that steps have sent to a GPU; 0 on the CPU.
    [[nodiscard]] std::int64_t bytes_sent() const {
        return transfers_ ? transfers_->bytes_sent() : 0;
    }

    // Returns the copies of the weights, for updates; null with the null model. The live copy, and
    // the epoch with it, may change only with no step in progress.
    [[nodiscard]] WeightStore* weights() { return weights_ ? &*weights_ : nullptr; }
    [[nodiscard]] const WeightStore* weights() const { return weights_ ? &*weights_ : nullptr; }
    void set_epoch(Epoch epoch) { epoch_ = epoch; }
    // Makes an empty adapter of the modules that are found. Thread: any. Errors: those of
    // AdapterSlots; kUnsupported where this rank computes none.
    [[nodiscard]] Result<std::unique_ptr<Adapter>> make_adapter(ModuleSearch& search) const;
    // Moves an adapter whose tensors are staged to the memory that it serves from. Thread: any.
    // Errors: upload()'s.
    [[nodiscard]] Result<> place(Adapter& adapter) {
        return adapter.is_on_gpu() ? adapter.upload(weights_->pieces()) : Ok{};
    }
    // The versions of adapters that plans may name. One may be removed only while no step is in
    // progress.
    [[nodiscard]] Adapters& adapters() { return adapters_; }
    // The grammars that plans may name.
    [[nodiscard]] Grammars& grammars() { return grammars_; }
    // Returns the KV memory, which no pass may use while it is released; null with the null model.
    [[nodiscard]] Arena* kv_memory() { return kv_memory_ ? &*kv_memory_ : nullptr; }
    [[nodiscard]] const Arena* kv_memory() const { return kv_memory_ ? &*kv_memory_ : nullptr; }
    // For an idle worker to touch KV; null on a GPU and with the null model.
    [[nodiscard]] KvAhead* kv_ahead() { return kv_ahead_ ? &*kv_ahead_ : nullptr; }

  private:
    // A step that was started.
    struct RunningStep {
        RunningStep();
        ~RunningStep();
        RunningStep(const RunningStep&) = delete;
        RunningStep& operator=(const RunningStep&) = delete;

        PlannedStep planned{};
        messages::StepResult result{};
        TimePoint begun{};
        std::vector<std::int32_t> token_rows{};  // rows of the wanted logits
        const std::int32_t* device_token_rows = nullptr;
        // Null if no routes are wanted, and on all ranks but the first.
        const std::int32_t* device_routed_rows = nullptr;
        std::uint8_t* device_routes = nullptr;
        std::int64_t* device_load = nullptr;    // null if the step does not report the load
        std::unique_ptr<Sampler::Call> call{};  // null: no logits are wanted, or it is finished
        std::vector<TokenId> ids{};             // by row of logits, on every rank: the drawn ids
        std::vector<std::uint8_t> marks{};      // by token (StepBatch)
        StepAdapters adapters{};
        // slots set up again since this step started: its draws for them are void
        std::vector<SlotId> set_up_anew{};
        bool is_complete = false;  // the step's result is ready, or the rank has to end
    };

    Engine(
        const EngineOptions& options,
        ModelConfig config,
        Stack stack,
        WeightLayout layout,
        Device device,
        Communicator& communicator
    );
    [[nodiscard]] static Result<Device> open_device(
        const EngineOptions& options, kernels::ThreadPool& threads, Communicator& communicator
    );
    Result<> connect_gpus();
    Result<> load_model();
    Result<> load_runtime();
    void tune();
    Result<> divide_gpu_memory(const Model::Args& args);
    [[nodiscard]] Result<std::int64_t> bytes_taken(std::int64_t bytes) const;
    [[nodiscard]] std::int64_t library_bytes_max() const;
    [[nodiscard]] std::int64_t group_bytes_max() const;
    [[nodiscard]] std::int64_t transfer_bytes_max() const;
    [[nodiscard]] std::int64_t padded_rows_max() const;
    [[nodiscard]] std::int64_t padded_tokens_max();
    [[nodiscard]] Sampler::Sizes sampler_sizes() const;
    Result<> load_checkpoint();
    [[nodiscard]] bool follows_tokens(const RunningStep& step) const;
    Result<> compute(const messages::StepPlan& plan, RunningStep* step);
    Result<StepBatch> place(const messages::StepPlan& plan, RunningStep* step);
    Result<> enqueue_layers(const StepBatch& placed, RunningStep* step);
    void place_routes(RunningStep* step);
    void enqueue_routes(const RunningStep& step);
    void place_load(RunningStep* step);
    void enqueue_load(const messages::StepPlan& plan, const RunningStep& step);
    void finish_load(RunningStep* step) const;
    [[nodiscard]] bool begins_sums(const RunningStep& step);
    void prepare_sampler(RunningStep* step);
    Result<> compute_in_chunks(RunningStep* step);
    Result<> complete(RunningStep* step);
    Result<> complete_older();
    void replay_drafts(const RunningStep& step);
    void record_sampled(const RunningStep& step);
    void wait_for_steps();
    [[nodiscard]] RunningStep& oldest() { return steps_[first_]; }
    // Returns the communicator that carries the model's tensors.
    [[nodiscard]] Communicator& tensor_communicator() {
        return gpu_communicator_ ? *gpu_communicator_ : communicator_;
    }
    [[nodiscard]] bool is_root() const { return raw(communicator_.rank()) == 0; }
    // Returns the bytes of a sum over the ranks in a step of this many tokens.
    [[nodiscard]] std::int64_t sum_bytes(std::int64_t num_tokens) const {
        return num_tokens * config_.hidden * static_cast<std::int64_t>(sizeof(float));
    }

    EngineOptions options_;
    ChosenRoom room_{.why = "on a CPU the second copy takes memory with the first update"};
    ModelConfig config_;
    Stack stack_;
    WeightLayout layout_;
    Device device_;
    Communicator& communicator_;
    std::shared_ptr<NcclTurn> nccl_turn_ = std::make_shared<NcclTurn>();
    std::unique_ptr<Communicator> gpu_communicator_{};  // null if ranks have no GPUs
    ModelSizes sizes_{};
    std::int64_t gpu_free_bytes_ = 0;  // on the GPU, before anything was allocated there
    StepLimits limits_{};
    RequestSlots slots_;
    std::optional<StepStates> states_{};  // empty if no block keeps a state
    Adapters adapters_{};
    Grammars grammars_{};
    std::array<RunningStep, kStepsMax> steps_{};  // a ring
    std::size_t first_ = 0;
    std::size_t num_under_way_ = 0;
    TimePoint last_finish_{};
    TimePoint load_reported_at_{};
    Epoch epoch_{1};

    // Empty with the null model.
    std::optional<WeightStore> weights_{};
    std::vector<messages::PartDigest>
        digests_{};  // as loaded; empty if they cannot be computed (weight_digest.h)
    std::optional<Arena> kv_memory_{};
    std::optional<KvAhead> kv_ahead_{};  // empty on a GPU, whose memory is allocated at once
    std::optional<Transfers> transfers_{};
    std::optional<Model> model_{};
    std::optional<Sampler> sampler_{};
};

}  // namespace pitstop::tp_worker
