// One rank, without its sockets: the weights it holds, its KV memory, the forward pass and the
// sampler. A plan goes in, a result comes out.
//
// Owns:   everything of the rank but the thread pool and the communicator's peers.
// Thread: one.
// Every rank of a replica runs the same plans in the same order; only rank 0's results carry
// numbers.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"
#include "messages/steps.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/groups/communicator.h"
#include "tp_worker/model/kv_ahead.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/sampler.h"
#include "tp_worker/model/step_batch.h"
#include "tp_worker/model/update_room.h"
#include "tp_worker/weights/gpu_writer.h"
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_store.h"

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
    kNull,  // config.json alone; see null_model.h
};

struct EngineOptions {
    std::string model_dir{};
    bool awaits_weights = false;  // load none: the first complete update brings them
    std::string weights_dir{};  // a checkpoint of the same shape to load instead; empty: model_dir
    LoadFormat load_format = LoadFormat::kAuto;
    ExtraTensors extra_tensors = ExtraTensors::kRefuse;  // of checkpoints and of updates
    Compute compute = Compute::kBf16;
    IsaLevel isa = IsaLevel::kScalar;
    DeviceKind device = DeviceKind::kCpu;
    std::string device_why{};  // it is this one, where --device auto chose
    int gpu = 0;
    Determinism determinism = Determinism::kFast;
    bool has_graphs = true;                      // on a GPU: steps of decodes are CUDA graphs
    double mem_fraction = 0.9;                   // of the GPU's free memory that this rank may take
    UpdateRoom update_room = UpdateRoom::kAuto;  // on a GPU
    std::int64_t page_size = 16;                 // tokens
    std::int64_t max_total_tokens = 0;           // of KV; 0: by kv_share, on a GPU mem_fraction
    double kv_share = 0.25;                      // of the host's memory, for all ranks' KV together
    std::int64_t context_len = 0;                // 0: the model's
    std::string tuning_dir{};                    // with cuda: where what was timed is kept
                                                 // (linear_tuning.h); empty: nothing is timed
    std::int64_t num_slots = 256;                // requests that may run at once
    std::int64_t tokens_per_step_max = 8192;
    Duration step_timeout =
        kernels::kDeviceWaitMax;  // on a GPU: a step that takes longer never ends (P5)
    Duration exchange_limit =
        kernels::kDeviceWaitMax;  // on GPUs: of a rank's wait for another within a step
    // Told why the checkpoint cannot be loaded, before load() fails of it.
    std::function<void(const Error&)> weights_are_lost{};
};

inline constexpr std::int64_t kLeastKvBytes = std::int64_t{1} << 30;  // of all ranks, by default
// So many bytes of logits are held at a time: a GPU has the room, and each part costs it a round
// trip.
inline constexpr std::int64_t kLogitBytesMax = std::int64_t{64} << 20;
inline constexpr std::int64_t kGpuLogitBytesMax = std::int64_t{512} << 20;
inline constexpr std::int64_t kLogitRowsMax = 512;

class Engine {
  public:
    // `communicator` says which rank of how many this is; both outlive the engine.
    // Errors: what the directory lacks or holds wrongly, every problem; what is not supported; no
    // memory. Peers do not wait here: a rank that fails to load is noticed as gone.
    static Result<std::unique_ptr<Engine>> load(
        const EngineOptions& options, kernels::ThreadPool& threads, Communicator& communicator
    );

    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // REQUIRES: invalid(plan) found nothing.
    // Errors: kInvalidArgument (a range this worker does not have), kFailedPrecondition (another
    // epoch's plan: P1), or the communicator's. After any of them the rank is out of step with its
    // peers and must end.
    Result<messages::StepResult> run(const messages::StepPlan& plan);

    // Logits of every token of the last step, by a chunk of rows: for tests and tools, on rank 0.
    Result<std::vector<float>> read_logits(std::span<const std::int32_t> token_rows);

    [[nodiscard]] messages::WorkerHello describe() const;
    [[nodiscard]] const ModelConfig& config() const { return config_; }
    [[nodiscard]] const WeightLayout& layout() const { return layout_; }
    [[nodiscard]] Epoch epoch() const { return epoch_; }
    [[nodiscard]] Rank rank() const { return communicator_.rank(); }
    [[nodiscard]] int tp() const { return communicator_.size(); }
    [[nodiscard]] int num_threads() const { return kernels::num_threads_of(device_.host_stream()); }
    [[nodiscard]] const Device& device() const { return device_; }
    // Returns the ops for weights in host memory, which stage them.
    [[nodiscard]] const kernels::Ops& ops() const { return device_.host_ops(); }

    // Of steps that this engine ran; null with the null model.
    [[nodiscard]] const StepGraphs* graphs() const { return model_ ? &model_->graphs() : nullptr; }

    // The copies of the weights, for updates; null with the null model. Only between passes may the
    // live copy change, and the epoch with it.
    [[nodiscard]] WeightStore* weights() { return weights_ ? &*weights_ : nullptr; }
    // Digests a copy of the weights that has memory. The background's. REQUIRES: is on a GPU.
    Result<std::vector<messages::PartDigest>> digest_on_gpu(const std::byte* arena) {
        return gpu_digest_->digest(arena, device_.ops());
    }
    // Returns what stages need on a GPU; null on the CPU.
    [[nodiscard]] GpuStaging* gpu_staging() { return gpu_staging_ ? &*gpu_staging_ : nullptr; }
    [[nodiscard]] const WeightStore* weights() const { return weights_ ? &*weights_ : nullptr; }
    void set_epoch(Epoch epoch) { epoch_ = epoch; }
    // The KV memory; null with the null model. Only without a pass in flight may it be released.
    [[nodiscard]] Arena* kv_memory() { return kv_memory_ ? &*kv_memory_ : nullptr; }
    [[nodiscard]] const Arena* kv_memory() const { return kv_memory_ ? &*kv_memory_ : nullptr; }
    // What an idle worker touches of it; null on a GPU and with the null model.
    [[nodiscard]] KvAhead* kv_ahead() { return kv_ahead_ ? &*kv_ahead_ : nullptr; }

  private:
    Engine(
        const EngineOptions& options,
        ModelConfig config,
        WeightLayout layout,
        Device device,
        Communicator& communicator
    );
    [[nodiscard]] static Result<Device> open_device(
        const EngineOptions& options, kernels::ThreadPool& threads, Communicator& communicator
    );
    Result<> load_model();
    Result<> load_runtime();
    void tune();
    Result<> divide_gpu_memory(const Model::Args& args);
    [[nodiscard]] Result<std::int64_t> bytes_taken(std::int64_t bytes) const;
    [[nodiscard]] std::int64_t transfer_bytes_max() const;
    [[nodiscard]] std::int64_t padded_rows_max() const;
    Result<> load_checkpoint();
    Result<> compute(const messages::StepPlan& plan, messages::StepResult* result);
    Result<> share_sampled(messages::StepResult* result);
    // That the model's tensors go by.
    [[nodiscard]] Communicator& tensor_communicator() {
        return gpu_communicator_ ? *gpu_communicator_ : communicator_;
    }
    [[nodiscard]] bool is_root() const { return raw(communicator_.rank()) == 0; }

    EngineOptions options_;
    ChosenRoom room_{.why = "on a CPU the second copy takes memory with the first update"};
    ModelConfig config_;
    WeightLayout layout_;
    Device device_;
    Communicator& communicator_;
    std::unique_ptr<Communicator> gpu_communicator_{};  // where ranks have GPUs
    ModelSizes sizes_{};
    std::int64_t gpu_free_bytes_ = 0;  // before anything was put there
    StepLimits limits_{};
    RequestSlots slots_;
    PlannedStep planned_{};
    Epoch epoch_{1};

    // Empty with the null model.
    std::optional<WeightStore> weights_{};
    std::optional<GpuWeightDigest> gpu_digest_{};  // empty on the CPU
    std::optional<GpuStaging> gpu_staging_{};      // empty on the CPU
    std::vector<messages::PartDigest>
        digests_{};  // as loaded; empty where they cannot be had (weight_digest.h)
    std::optional<Arena> kv_memory_{};
    std::optional<KvAhead> kv_ahead_{};  // empty on a GPU, whose memory comes at once
    std::optional<Transfers> transfers_{};
    std::optional<Model> model_{};
    std::optional<Sampler> sampler_{};
};

}  // namespace pitstop::tp_worker
