#include "tp_worker/model/engine.h"

#include "base/log.h"
#include "base/time.h"
#include "kernels/linear_tuning.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/step_rows.h"
#include "tp_worker/device/host_room.h"
#include "tp_worker/model/engine_sizes.h"
#include "tp_worker/model/rank_facts.h"
#include "tp_worker/model/sampler_call.h"
#include "tp_worker/model/step_padding.h"
#include "tp_worker/ranks/gpu_communicator.h"
#include "tp_worker/ranks/nodes_communicator.h"
#include "tp_worker/weights/checkpoint_tensors.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {

Engine::Engine(
    const EngineOptions& options,
    ModelConfig config,
    Stack stack,
    WeightLayout layout,
    Device device,
    Communicator& communicator
)
    : options_(options),
      config_(std::move(config)),
      stack_(std::move(stack)),
      layout_(std::move(layout)),
      device_(std::move(device)),
      communicator_(communicator),
      slots_(static_cast<std::size_t>(options.num_slots)) {}

Result<Device> Engine::open_device(
    const EngineOptions& options, kernels::ThreadPool& threads, Communicator& communicator
) {
    DeviceOptions device_options{
        .kind = options.load_format == LoadFormat::kNull ? DeviceKind::kCpu : options.device,
        .gpu = options.gpu,
        .isa = options.isa,
        .determinism = options.determinism,
        .why = options.device_why,
    };
    ASSIGN_OR_RETURN(Device device, Device::open(device_options, threads));
    if (device_options.kind == DeviceKind::kAuto && !device.is_cuda())
        spdlog::warn("this rank's GPU cannot be used: {}", device.why());
    if (device_options.kind != DeviceKind::kAuto || communicator.size() == 1) return device;
    // Either all ranks are on GPUs or none is.
    ASSIGN_OR_RETURN(const bool is_cuda, holds_on_all(device.is_cuda(), communicator));
    if (is_cuda || !device.is_cuda()) return device;
    device_options.kind = DeviceKind::kCpu;
    device_options.why = "another rank of this replica cannot use its GPU";
    spdlog::warn("{}", device_options.why);
    return Device::open(device_options, threads);
}

Result<std::unique_ptr<Engine>> Engine::load(
    const EngineOptions& options, kernels::ThreadPool& threads, Communicator& communicator
) {
    ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(options.model_dir));
    const RankOf rank{
        .rank = raw(communicator.rank()), .tp = communicator.size(), .ep = options.ep};
    ASSIGN_OR_RETURN(Stack stack, Stack::make(config, rank));
    const TensorNames names = config.is_hybrid() ? TensorNames::kOfHybrid : TensorNames::kOwn;
    ASSIGN_OR_RETURN(
        WeightLayout layout, WeightLayout::make(stack.slots(), options.extra_tensors, names)
    );
    if (raw(communicator.rank()) == 0) {
        for (const std::string& note : config.notes)
            spdlog::warn("'{}/config.json': {}", options.model_dir, note);
    }
    ASSIGN_OR_RETURN(Device device, open_device(options, threads, communicator));
    // The whole model, without the copies of heads that several ranks may have.
    ASSIGN_OR_RETURN(const Stack whole, Stack::make(config, RankOf{}));
    ASSIGN_OR_RETURN(
        const ModelSizes sizes,
        choose_sizes(
            options,
            config,
            device.is_cuda(),
            {.token = whole.kv().token_bytes(options.compute),
             .state = whole.states().state_bytes()}
        )
    );
    std::unique_ptr<Engine> engine(new Engine(
        options,
        std::move(config),
        std::move(stack),
        std::move(layout),
        std::move(device),
        communicator
    ));
    engine->sizes_ = sizes;
    if (options.sums == SumPath::kNccl && !engine->device_.is_cuda())
        spdlog::warn("--all-reduce nccl is ignored: ranks on CPUs sum without NCCL");
    if (engine->device_.is_cuda() && communicator.size() > 1)
        RETURN_IF_ERROR(engine->connect_gpus());
    if (options.load_format == LoadFormat::kAuto) RETURN_IF_ERROR(engine->load_model());
    engine->limits_ = {
        .tokens_max = engine->sizes_.tokens_max,
        .num_positions = engine->sizes_.num_positions,
        .num_pages = engine->sizes_.num_pages,
        .page_size = engine->sizes_.page_size,
        .vocab_len = engine->config_.vocab_len,
        .padded_rows_max = engine->padded_rows_max(),
        .padded_tokens_max = engine->padded_tokens_max(),
        .has_drawn_on_device = engine->runs_ahead(),
        .routes = engine->routes(),
        .dense_layers = engine->dense_layers(),
        .num_checkpoints = engine->states_ ? engine->sizes_.num_checkpoints : 0,
        .drafted_max =
            engine->states_ && engine->sizes_.state_drafts_max == 0 ? 0 : messages::kDraftedMax,
        .has_states = engine->states_.has_value(),
        .no_supports = engine->device_.is_cuda() ? "GPUs report none" : "",
    };
    return engine;
}

// Connects the ranks' GPUs.
Result<> Engine::connect_gpus() {
    constexpr std::int64_t kPack = 4;  // floats that are summed at once (exchange.h)
    if (config_.hidden % kPack != 0) {
        return make_error(
            ErrorCode::kUnsupported,
            "hidden_size {} with --device cuda and --tp {}; accepted are multiples of {}",
            config_.hidden,
            communicator_.size(),
            kPack
        );
    }
    if (communicator_.num_on_machine() < communicator_.size()) {
        ASSIGN_OR_RETURN(
            gpu_communicator_,
            connect_nodes_communicator(
                {.host = communicator_,
                 .stream = device_.stream(),
                 .limit = options_.exchange_limit,
                 .nccl_turn = nccl_turn_}
            )
        );
        return Ok{};
    }
    const bool is_fixed = options_.determinism == Determinism::kBatchInvariant;
    ASSIGN_OR_RETURN(
        gpu_communicator_,
        connect_gpu_communicator(
            {.host = communicator_,
             .bus = options_.bus != nullptr ? *options_.bus : communicator_,
             .stream = device_.stream(),
             .limit = options_.exchange_limit,
             .sums = is_fixed ? SumPath::kOwn : options_.sums,
             .nccl_turn = nccl_turn_,
             .sum_bytes_max = sum_bytes(sizes_.tokens_max),
             .is_timed = !options_.tuning_dir.empty()}
        )
    );
    return Ok{};
}

// A CPU uses no padding: there, each padded row would cost its computation.
std::int64_t Engine::padded_rows_max() const {
    if (!device_.is_cuda() || !model_) return 0;
    return std::min({kPaddedRowsMax, sizes_.tokens_max, sizes_.logit_rows_max});
}

// Steps are padded up to the size whose sums over the ranks can be captured. Tokens of padding have
// positions of their own, which must fit the context.
std::int64_t Engine::padded_tokens_max() {
    if (!device_.is_cuda() || !model_ || sizes_.num_positions < kPaddingTokenStep) return 0;
    std::int64_t num =
        std::min(kPaddedTokensMax, sizes_.tokens_max) / kPaddingTokenStep * kPaddingTokenStep;
    while (num > 0 && !tensor_communicator().may_capture_sum(sum_bytes(num)))
        num -= kPaddingTokenStep;
    return num;
}

Result<> Engine::load_model() {
    if (device_.is_cuda()) sizes_.num_scratch_pages = num_scratch_pages(sizes_.page_size);
    if (device_.is_cuda()) gpu_free_bytes_ = kernels::device_memory_info().free_bytes;
    ASSIGN_OR_RETURN(weights_, WeightStore::make(layout_, device_));
    // After a restart that followed an update, the tree gives the update's weights in weights_dir.
    if (options_.awaits_weights && options_.weights_dir.empty()) {
        weights_->mark_lost();
    } else {
        Result<> loaded = load_checkpoint();
        if (!loaded && options_.weights_are_lost) options_.weights_are_lost(loaded.error());
        RETURN_IF_ERROR(std::move(loaded));
    }
    return load_runtime();
}

// Divides the GPU memory that is left after weights and activations, within the fraction. A second
// copy of the weights may use a part; KV uses the rest, unless its size is given.
Result<> Engine::divide_gpu_memory(const Model::Args& args) {
    ModelSizes one_page = sizes_;
    one_page.num_pages = 1;
    one_page.num_scratch_pages = 0;
    const std::int64_t page = KvPool(stack_.kv(), one_page, options_.compute).page_bytes();
    const std::int64_t free = kernels::device_memory_info().free_bytes;
    ASSIGN_OR_RETURN(const std::int64_t activations, bytes_taken(Model::bytes(args)));
    ASSIGN_OR_RETURN(
        const std::int64_t sampling, bytes_taken(Sampler::bytes(device_.ops(), sampler_sizes()))
    );
    ASSIGN_OR_RETURN(
        const std::int64_t adapters,
        adapter_bytes_max(options_.adapter_memory, sizes_.adapter_rank_max, stack_, device_)
    );
    ASSIGN_OR_RETURN(const std::int64_t kv_rounding, bytes_taken(1));  // rounding adds less
    const std::int64_t others = gpu_free_bytes_ - free + activations + sampling +
                                transfer_bytes_max() + sizes_.num_scratch_pages * page +
                                kv_rounding + args.graph_bytes_max + library_bytes_max() + adapters;
    const bool is_kv_open = sizes_.num_pages == 0;
    const double fraction = is_kv_open ? options_.mem_fraction : 1.0;
    const std::int64_t budget = std::min(
        static_cast<std::int64_t>(fraction * static_cast<double>(gpu_free_bytes_)),
        gpu_free_bytes_ - group_bytes_max()
    );
    // Pages for one request of the whole context, or the requested number.
    const std::int64_t pages_wanted =
        is_kv_open ? (sizes_.num_positions + sizes_.page_size - 1) / sizes_.page_size
                   : sizes_.num_pages;
    RoomFacts own{
        .device = device_.name(),
        .free = gpu_free_bytes_,
        .budget = budget,
        .others = others,
        .adapters = adapters,
        .copy = weights_->live_memory().bytes(),
        .page = page,
        .pages_wanted = pages_wanted,
        .host_free = free_host_bytes(),
        .host_copy = HostCopy::host_bytes_of(weights_->bytes()),
    };
    const StatesAsked states{
        stack_.states().state_bytes(), options_.num_slots, sizes_.num_checkpoints};
    ASSIGN_OR_RETURN(sizes_.num_checkpoints, add_states(states, &own, communicator_));
    ASSIGN_OR_RETURN(const RoomFacts facts, facts_of_all(own, communicator_));
    RETURN_IF_ERROR(check_states(states, sizes_.num_checkpoints, facts));
    ASSIGN_OR_RETURN(room_, choose_room(options_.update_room, facts));
    spdlog::info("updates: {}, {}", name_of(room_.room), room_.why);
    if (room_.room == UpdateRoom::kHost) RETURN_IF_ERROR(weights_->stage_on_host());
    if (room_.room == UpdateRoom::kLend) weights_->stage_on_loan();
    if (!is_kv_open) return Ok{};
    sizes_.num_pages = std::min(room_.num_pages, kKvTokensMax / sizes_.page_size);
    if (sizes_.num_pages < 1) return no_room_for_kv(options_.mem_fraction, facts);
    sizes_.num_positions = std::min(sizes_.num_positions, sizes_.num_pages * sizes_.page_size);
    return Ok{};
}

// The driver rounds up ranges. Reserving addresses, which takes no memory, shows the rounded size.
Result<std::int64_t> Engine::bytes_taken(std::int64_t bytes) const {
    ASSIGN_OR_RETURN(const Arena range, device_.reserve("a range that is measured", bytes));
    return range.bytes();
}

// cuBLASLt loads a kernel when it is first used, perhaps long after the memory was divided. Our own
// kernels are loaded before (kernels/runtime/kernel_code.h).
std::int64_t Engine::library_bytes_max() const {
    constexpr std::int64_t kMax = std::int64_t{256} << 20;
    constexpr std::int64_t kShare = 256;  // at most 1 / kShare of the free memory
    return std::min(kMax, gpu_free_bytes_ / kShare);
}

// A trainer's group over NCCL joins long after the memory was divided. A communicator of one rank
// took 0.6 GB of an H200 (bench/results/gpu/first_1.md); one with another GPU also has buffers. The
// ranks' own communicator exists before the division.
std::int64_t Engine::group_bytes_max() const {
    constexpr std::int64_t kMax = std::int64_t{768} << 20;
    constexpr std::int64_t kShare = 128;  // at most 1 / kShare of the free memory
    const bool has_nccl = !kernels::opened_cuda_device().nccl_path.empty();
    return has_nccl ? std::min(kMax, gpu_free_bytes_ / kShare) : 0;
}

// Returns enough bytes for a full step's arrays, the sampler's included.
std::int64_t Engine::transfer_bytes_max() const {
    const std::int64_t rows = options_.num_slots + kPaddingStep;
    const std::int64_t pages =
        (sizes_.num_positions + sizes_.page_size - 1) / sizes_.page_size * rows;
    std::int64_t token_bytes = 4 + 4 + 8 + 1;           // id, position, place in the KV, mark
    if (sizes_.adapter_rank_max > 0) token_bytes += 8;  // adapter (StepBatch)
    std::int64_t load_bytes = 0;
    if (stack_.has_experts()) {  // routes, supplied and reported, and their tokens' indices
        constexpr std::int64_t kIdBytesMax = 2;
        token_bytes += 2 * (4 + config_.num_layers * config_.experts.per_token * kIdBytesMax);
        load_bytes = kLoadCountsMax * static_cast<std::int64_t>(sizeof(std::int64_t));
    }
    // Starts and lengths, the rows of logits, and changes of a row's pages (kernels/step_rows.h).
    constexpr std::int64_t kRowBytes = 4 + 4 + 4 + 4 + 4 * kernels::StepUpdate::kRunWords;
    constexpr std::int64_t kArraysMax = 28;
    constexpr std::int64_t kStatePlacesBytes = 4 + 4 + 4 + 4 + 4;  // of a row's states
    constexpr std::int64_t kDraftBytes = 4;
    const std::int64_t state_bytes = stack_.states().is_empty()
                                         ? 0
                                         : kStatePlacesBytes * (rows + kPaddedTokensMax + 2) +
                                               kDraftBytes * sizes_.state_drafts_max;
    return load_bytes + state_bytes + sizes_.tokens_max * token_bytes +
           (rows + kPaddedTokensMax + 2) * kRowBytes + pages * 4 +
           kArraysMax * Transfers::kAlignment +
           Sampler::transfer_bytes(sizes_.logit_rows_max, config_.vocab_len);
}

// Allocates the memory that runs need: KV, activations, the sampler's arrays.
Result<> Engine::load_runtime() {
    Model::Args args{
        .stack = stack_,
        .sizes = sizes_,
        .num_slots = options_.num_slots,
        .compute = options_.compute,
        .rounds_expert_weights = options_.rounds_expert_weights,
        .device = device_,
        .communicator = &tensor_communicator(),
        .has_graphs =
            options_.has_graphs && device_.is_cuda() && tensor_communicator().may_be_captured(),
    };
    if (args.has_graphs) args.graph_bytes_max = gpu_free_bytes_ / kGraphShare;
    if (device_.is_cuda()) RETURN_IF_ERROR(divide_gpu_memory(args));
    args.sizes = sizes_;
    const KvPool pool(stack_.kv(), sizes_, options_.compute);
    const StatePool states(stack_.states(), options_.num_slots + sizes_.num_checkpoints);
    const std::int64_t states_begin = StatePool::aligned(pool.bytes());
    ASSIGN_OR_RETURN(kv_memory_, device_.reserve("kv_cache", states_begin + states.bytes()));
    RETURN_IF_ERROR(kv_memory_->commit());
    args.kv = kv_memory_->data();
    args.states = kv_memory_->data() + states_begin;
    if (states.bytes() > 0) states_.emplace(options_.num_slots, sizes_.num_checkpoints);
    if (!device_.is_cuda()) kv_ahead_.emplace(*kv_memory_, pool);
    ASSIGN_OR_RETURN(
        transfers_, Transfers::make(device_, transfer_bytes_max(), options_.step_timeout)
    );
    args.transfers = &*transfers_;
    ASSIGN_OR_RETURN(model_, Model::make(args));
    if (!options_.tuning_dir.empty() && device_.ops().tune_linear != nullptr) tune();
    ASSIGN_OR_RETURN(
        sampler_,
        Sampler::make(
            {.device = device_,
             .transfers = &*transfers_,
             .sizes = sampler_sizes(),
             .communicator = &tensor_communicator(),
             .vocab_begin = stack_.embedding().vocab_begin()}
        )
    );
    return Ok{};
}

Sampler::Sizes Engine::sampler_sizes() const {
    return {
        .rows_max = sizes_.logit_rows_max,
        .vocab_len = config_.vocab_len,
        .num_slots = options_.num_slots,
        .num_ranks = tp(),
        .rank = rank()};
}

void Engine::tune() {
    const int num_known = kernels::load_linear_choices(options_.tuning_dir);
    const TimePoint begin = Clock::now();
    const int num_timed = model_->tune(weights_->live());
    const double spent = seconds(Clock::now() - begin);
    spdlog::info("products: {} choices known, {} timed in {:.1f} s", num_known, num_timed, spent);
    if (num_timed == 0) return;
    // Without the file the next start times them again.
    if (Result<> saved = kernels::save_linear_choices(options_.tuning_dir); !saved)
        spdlog::warn("{}", saved.error().message);
}

Result<> Engine::load_checkpoint() {
    const std::string& weights_dir =
        options_.weights_dir.empty() ? options_.model_dir : options_.weights_dir;
    ASSIGN_OR_RETURN(
        const checkpoint::Checkpoint checkpoint,
        checkpoint::Checkpoint::open(weights_dir, {.tensors_max = offered_max(layout_)})
    );
    const CheckpointTensors tensors(layout_, checkpoint);
    RETURN_IF_ERROR(weights_->load(tensors, weights_dir));
    RETURN_IF_ERROR(checkpoint.is_unchanged());
    if (is_root()) {
        for (const std::string& note : tensors.notes()) spdlog::warn("'{}': {}", weights_dir, note);
    }
    Result<std::vector<messages::PartDigest>> digests =
        weights_->digest(weights_->live_data(), device_.host_stream());
    if (digests) {
        digests_ = *std::move(digests);
    } else {
        spdlog::warn("no digest of the weights: {}", digests.error().message);
    }
    return Ok{};
}

std::optional<messages::RouteShape> Engine::routes() const {
    if (!model_ || !model_->choices()) return std::nullopt;
    const Choices& choices = *model_->choices();
    return messages::RouteShape{
        .layers = choices.num_layers,
        .per_token = choices.per_token,
        .num_experts = choices.num_experts};
}

Result<std::unique_ptr<Adapter>> Engine::make_adapter(ModuleSearch& search) const {
    if (!model_ || sizes_.adapter_rank_max == 0) {
        return Error{
            ErrorCode::kUnsupported,
            "this rank computes no adapters (--load-format null or --max-adapter-rank 0)"};
    }
    ASSIGN_OR_RETURN(
        AdapterSlots slots,
        AdapterSlots::make(stack_.slots(), stack_.adaptable(), search, sizes_.adapter_rank_max)
    );
    return Adapter::make(std::move(slots), stack_.slots().list().size(), device_);
}

std::vector<std::int64_t> Engine::dense_layers() const {
    std::vector<std::int64_t> layers;
    if (!routes()) return layers;
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
        const LayerBlocks& blocks = config_.layers[i];
        if (std::ranges::find(blocks, BlockKind::kExperts) == blocks.end())
            layers.push_back(static_cast<std::int64_t>(i));
    }
    return layers;
}

messages::WorkerHello Engine::describe() const {
    messages::WorkerHello hello;
    hello.rank = communicator_.rank();
    hello.tp = communicator_.size();
    hello.pid = ::getpid();
    hello.model_type = config_.model_type;
    hello.context_len = sizes_.num_positions;
    hello.vocab_size = config_.vocab_len;
    hello.num_pages = sizes_.num_pages;
    hello.page_size = sizes_.page_size;
    hello.num_slots = options_.num_slots;
    hello.eos_ids = config_.eos_ids;
    hello.digests = digests_;
    hello.weight_bytes = weights_ ? weights_->bytes() : 0;
    hello.kv_bytes = kv_memory_ ? kv_memory_->bytes() : 0;
    hello.graph_bytes_max = model_ ? model_->graphs().bytes_max() : 0;
    hello.device = model_ ? device_.name() : "null";
    hello.libraries = device_.libraries();
    if (gpu_communicator_) hello.libraries.push_back(gpu_communicator_->describe());
    hello.device_why = device_.why();
    hello.compute = name_of(options_.compute);
    if (weights_) {
        hello.update_mode = name_of(room_.room);
        hello.update_mode_why = room_.why;
    }
    hello.has_weights = !weights_ || !weights_->is_lost();
    hello.routes = routes();
    hello.adapter_rank_max = model_ ? sizes_.adapter_rank_max : 0;
    hello.dense_layers = dense_layers();
    if (states_) {
        hello.state_bytes = stack_.states().state_bytes();
        hello.num_checkpoints = sizes_.num_checkpoints;
    }
    hello.drafted_max = limits_.drafted_max;
    hello.no_grammars = model_ ? grammar::why_none() : "--load-format null computes no logits";
    hello.no_supports = limits_.no_supports;
    hello.ep = options_.ep;
    return hello;
}

}  // namespace pitstop::tp_worker
