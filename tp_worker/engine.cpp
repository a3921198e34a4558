#include "tp_worker/engine.h"

#include "base/log.h"
#include "tp_worker/null_model.h"
#include "tp_worker/weight_digest.h"
#include "tp_worker/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

// What the options leave open, from the model and from each other.
Result<ModelSizes> choose_sizes(
    const EngineOptions& options, const ModelConfig& config, std::int64_t token_bytes_all_ranks
) {
    if (options.page_size < 1 || options.page_size > 4096) {
        return make_error(
            ErrorCode::kInvalidArgument, "page size {}; accepted are 1 to 4096", options.page_size
        );
    }
    if (options.tokens_per_step_max < 1 ||
        options.tokens_per_step_max > static_cast<std::int64_t>(StepPlan::kTokensMax)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} tokens per step; accepted are 1 to {}",
            options.tokens_per_step_max,
            StepPlan::kTokensMax
        );
    }
    if (options.num_slots < 1 ||
        options.num_slots > static_cast<std::int64_t>(StepPlan::kRowsMax)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} requests at once; accepted are 1 to {}",
            options.num_slots,
            StepPlan::kRowsMax
        );
    }
    if (options.context_len < 0 || options.context_len > config.context_len) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a context of {} tokens; the model has {}",
            options.context_len,
            config.context_len
        );
    }
    const std::int64_t context = options.context_len > 0 ? options.context_len : config.context_len;
    std::int64_t tokens = options.max_total_tokens;
    if (tokens == 0) tokens = std::max(kDefaultKvBytes / token_bytes_all_ranks, options.page_size);
    if (tokens < options.page_size || tokens > (std::int64_t{1} << 31) - 1) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} tokens of KV; accepted are a page ({}) to 2^31 - 1",
            tokens,
            options.page_size
        );
    }
    ModelSizes sizes;
    sizes.tokens_max = options.tokens_per_step_max;
    sizes.page_size = options.page_size;
    sizes.num_pages = tokens / options.page_size;
    sizes.num_positions = std::min(context, sizes.num_pages * options.page_size);
    sizes.logit_rows_max =
        std::clamp<std::int64_t>(kLogitBytesMax / (4 * config.vocab_len), 1, kLogitRowsMax);
    return sizes;
}

}  // namespace

Engine::Engine(
    const EngineOptions& options,
    ModelConfig config,
    WeightLayout layout,
    ThreadPool& threads,
    Communicator& communicator
)
    : options_(options),
      config_(std::move(config)),
      layout_(std::move(layout)),
      ops_(cpu_ops(options.isa)),
      stream_(stream_of(threads)),
      communicator_(communicator),
      slots_(static_cast<std::size_t>(options.num_slots)) {}

Result<std::unique_ptr<Engine>> Engine::load(
    const EngineOptions& options, ThreadPool& threads, Communicator& communicator
) {
    ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(options.model_dir));
    ASSIGN_OR_RETURN(
        WeightLayout layout, WeightLayout::make(config, communicator.rank(), communicator.size())
    );
    const std::int64_t element_bytes = options.compute == Compute::kFp32 ? 4 : 2;
    const std::int64_t token_bytes =
        2 * config.num_layers * config.num_kv_heads * config.head_dim * element_bytes;
    ASSIGN_OR_RETURN(const ModelSizes sizes, choose_sizes(options, config, token_bytes));
    std::unique_ptr<Engine> engine(
        new Engine(options, std::move(config), std::move(layout), threads, communicator)
    );
    engine->sizes_ = sizes;
    engine->limits_ = {
        .tokens_max = sizes.tokens_max,
        .num_positions = sizes.num_positions,
        .num_pages = sizes.num_pages,
        .page_size = sizes.page_size,
        .vocab_len = engine->config_.vocab_len,
    };
    if (options.load_format == LoadFormat::kAuto) RETURN_IF_ERROR(engine->load_model());
    return engine;
}

Result<> Engine::load_model() {
    ASSIGN_OR_RETURN(weights_, WeightStore::make(layout_, config_));
    // A tree that was restarted after an update has its weights.
    if (options_.awaits_weights && options_.weights_dir.empty()) {
        weights_->mark_lost();
    } else {
        RETURN_IF_ERROR(load_checkpoint());
    }

    const KvCache layer_kv = kv_of_layer(sizes_, config_, layout_.shape(), options_.compute);
    ASSIGN_OR_RETURN(
        kv_memory_, Arena::reserve("kv_cache", config_.num_layers * kv_bytes(layer_kv))
    );
    RETURN_IF_ERROR(kv_memory_->commit());
    const Model::Args args{
        .config = config_,
        .shard = layout_.shape(),
        .sizes = sizes_,
        .compute = options_.compute,
        .ops = ops_,
        .stream = stream_,
        .communicator = &communicator_,
        .kv = kv_memory_->data(),
    };
    ASSIGN_OR_RETURN(model_, Model::make(args));
    if (!is_root()) return Ok{};
    ASSIGN_OR_RETURN(
        sampler_, Sampler::make(ops_, stream_, sizes_.logit_rows_max, config_.vocab_len)
    );
    return Ok{};
}

Result<> Engine::load_checkpoint() {
    const std::string& weights_dir =
        options_.weights_dir.empty() ? options_.model_dir : options_.weights_dir;
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(weights_dir));
    RETURN_IF_ERROR(
        load_weights(layout_, checkpoint, weights_dir, *ops_, stream_, weights_->live_data())
    );
    Result<std::vector<PartDigest>> digests =
        digest_weights(layout_, weights_->live_data(), *ops_, stream_);
    if (digests) {
        digests_ = *std::move(digests);
    } else {
        spdlog::warn("no digest of the weights: {}", digests.error().message);
    }
    return Ok{};
}

Result<StepResult> Engine::run(const StepPlan& plan) {
    const auto begin = std::chrono::steady_clock::now();
    if (plan.epoch != epoch_) {
        return make_error(
            ErrorCode::kFailedPrecondition,
            "step {} is for weights of epoch {}; rank {} has epoch {}",
            raw(plan.step),
            raw(plan.epoch),
            raw(communicator_.rank()),
            raw(epoch_)
        );
    }
    RETURN_IF_ERROR(set_up_requests(plan, config_.vocab_len, &slots_));
    RETURN_IF_ERROR(planned_.prepare(plan, slots_, limits_));
    StepResult result = planned_.empty_result(plan, communicator_.rank());
    if (model_) {
        RETURN_IF_ERROR(compute(plan, &result));
        RETURN_IF_ERROR(share_sampled(&result));
    } else if (is_root()) {
        run_null_model(planned_.logit_rows(), slots_, config_.vocab_len, &result);
    }
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    result.elapsed_us = std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count();
    return result;
}

Result<> Engine::compute(const StepPlan& plan, StepResult* result) {
    RETURN_IF_ERROR(model_->forward(planned_.batch(plan), weights_->live()));
    // In chunks, so that scoring a long prompt needs no more memory than a step of decodes.
    std::span<const LogitRow> left = planned_.logit_rows();
    std::vector<std::int32_t> token_rows;
    while (!left.empty()) {
        const auto num = std::min(left.size(), static_cast<std::size_t>(sizes_.logit_rows_max));
        const std::span<const LogitRow> chunk = left.first(num);
        token_rows.clear();
        for (const LogitRow& row : chunk) token_rows.push_back(row.token_row);
        ASSIGN_OR_RETURN(const View2<float> logits, model_->logits(token_rows, weights_->live()));
        if (is_root()) sampler_->run(logits, chunk, slots_, result);
        left = left.subspan(num);
    }
    return Ok{};
}

// Every rank learns what was sampled: the next step's rows may take it.
Result<> Engine::share_sampled(StepResult* result) {
    std::vector<TokenId> sampled = result->sampled.values;
    std::size_t num_sampled = 0;
    for (const LogitRow& row : planned_.logit_rows()) {
        if (row.kind == LogitRow::Kind::kSample) ++num_sampled;
    }
    sampled.resize(num_sampled);
    RETURN_IF_ERROR(communicator_.broadcast(std::as_writable_bytes(std::span(sampled))));
    for (const LogitRow& row : planned_.logit_rows()) {
        if (row.kind != LogitRow::Kind::kSample) continue;
        slots_[static_cast<std::size_t>(raw(row.slot))]->take_sampled(sampled[row.entry]);
    }
    return Ok{};
}

Result<std::vector<float>> Engine::read_logits(std::span<const std::int32_t> token_rows) {
    CHECK(model_.has_value());
    ASSIGN_OR_RETURN(const View2<float> logits, model_->logits(token_rows, weights_->live()));
    if (!is_root()) return std::vector<float>{};
    return std::vector<float>(logits.data, logits.data + logits.rows * logits.cols);
}

WorkerHello Engine::describe() const {
    WorkerHello hello;
    hello.rank = communicator_.rank();
    hello.tp = communicator_.size();
    hello.pid = ::getpid();
    hello.model_type = name_of(config_.family);
    hello.context_len = sizes_.num_positions;
    hello.vocab_size = config_.vocab_len;
    hello.num_pages = sizes_.num_pages;
    hello.page_size = sizes_.page_size;
    hello.num_slots = options_.num_slots;
    hello.eos_ids = config_.eos_ids;
    hello.digests = digests_;
    hello.weight_bytes = weights_ ? weights_->bytes() : 0;
    hello.kv_bytes = kv_memory_ ? kv_memory_->bytes() : 0;
    hello.device = model_ ? ops_->name : "null";
    hello.compute = name_of(options_.compute);
    hello.has_weights = !weights_ || !weights_->is_lost();
    return hello;
}

}  // namespace pitstop
