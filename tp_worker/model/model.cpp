#include "tp_worker/model/model.h"

#include "kernels/linear_tuning.h"
#include "kernels/thread_pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 256;  // bytes: a GPU's workspaces

// Cuts buffers out of a range, one after the other. From null it only counts.
class Carver {
  public:
    explicit Carver(std::byte* memory) : memory_(memory) {}

    void* take(std::int64_t bytes) {
        void* start = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        return start;
    }
    View2<float> floats(std::int64_t rows, std::int64_t cols) {
        return view2(static_cast<float*>(take(rows * cols * 4)), rows, cols);
    }
    kernels::ActView acts(kernels::DType dtype, std::int64_t rows, std::int64_t cols) {
        return {take(rows * cols * size_of(dtype)), dtype, rows, cols, cols};
    }
    [[nodiscard]] std::int64_t used() const { return used_; }

  private:
    std::byte* memory_;
    std::int64_t used_ = 0;
};

constexpr std::int64_t kArrivalsBytes =
    kernels::AttentionArgs::kArrivals * static_cast<std::int64_t>(sizeof(std::uint32_t));

// Returns the type of what leaves a product and is not summed over the ranks (model.h).
kernels::DType product_dtype(const Model::Args& args) {
    const bool is_bf16 = args.device.is_cuda() && args.compute == Compute::kBf16;
    return is_bf16 ? kernels::DType::kBF16 : kernels::DType::kF32;
}

kernels::DType act_dtype(Compute compute) {
    return compute == Compute::kFp32 ? kernels::DType::kF32 : kernels::DType::kBF16;
}

std::int32_t narrow(std::int64_t value) {
    CHECK(value >= 0 && value <= std::numeric_limits<std::int32_t>::max());
    return static_cast<std::int32_t>(value);
}

}  // namespace

std::string_view name_of(Compute compute) { return compute == Compute::kFp32 ? "fp32" : "bf16"; }

kernels::KvCache kv_of_layer(
    const ModelSizes& sizes, const ModelConfig& config, const ShardShape& shard, Compute compute
) {
    return {
        .dtype = act_dtype(compute),
        .num_pages = narrow(sizes.num_pages + sizes.num_scratch_pages),
        .page_size = narrow(sizes.page_size),
        .num_kv_heads = narrow(shard.num_kv_heads),
        .head_dim = narrow(config.head_dim),
    };
}

std::int64_t Model::lay_out(const Args& args, std::byte* memory, Buffers* buffers) {
    const std::int64_t T = args.sizes.tokens_max;
    const std::int64_t L = args.sizes.logit_rows_max;
    const std::int64_t H = args.config.hidden;
    const std::int64_t F = args.shard.ffn;
    const std::int64_t QD = args.shard.num_q_heads * args.config.head_dim;
    const std::int64_t KD = args.shard.num_kv_heads * args.config.head_dim;
    const kernels::DType dtype = act_dtype(args.compute);
    const kernels::Ops& ops = args.device.ops();
    Carver carver(memory);
    Buffers b;
    b.x = carver.floats(T, H);
    b.delta = carver.floats(T, H);
    b.normed = carver.acts(dtype, T, H);
    const kernels::ActView qkv = carver.acts(product_dtype(args), T, QD + 2 * KD);
    b.q = kernels::cols(qkv, 0, QD);
    b.k = kernels::cols(qkv, QD, KD);
    b.v = kernels::cols(qkv, QD + KD, KD);
    b.rotated = carver.acts(dtype, T, QD);
    b.attended = carver.acts(dtype, T, QD);
    const kernels::ActView gate_up = carver.acts(product_dtype(args), T, 2 * F);
    b.gate = kernels::cols(gate_up, 0, F);
    b.up = kernels::cols(gate_up, F, F);
    b.gated = carver.acts(dtype, T, F);
    b.head_x = carver.floats(L, H);
    b.head_delta = carver.floats(L, H);
    b.head_normed = carver.acts(dtype, L, H);
    b.head_part = carver.floats(L, args.shard.vocab_rows);
    const bool is_alone = args.communicator->size() == 1;
    const bool is_root = raw(args.communicator->rank()) == 0;
    if (is_alone) {
        b.head_whole = b.head_part;
    } else if (is_root) {
        b.head_whole = carver.floats(L, args.config.vocab_len);
    }
    b.cos = carver.floats(args.sizes.num_positions, args.config.head_dim / 2);
    b.sin = carver.floats(args.sizes.num_positions, args.config.head_dim / 2);
    b.attention.bytes = ops.attention_workspace_bytes({
        .num_tokens = T,
        .num_q_heads = narrow(args.shard.num_q_heads),
        .head_dim = narrow(args.config.head_dim),
        .kv_len_max = narrow(args.sizes.num_positions),
    });
    b.attention.data = carver.take(b.attention.bytes);
    if (args.device.is_cuda())
        b.arrivals = static_cast<std::uint32_t*>(carver.take(kArrivalsBytes));
    b.linear.bytes = ops.linear_workspace_bytes();
    b.linear.data = carver.take(b.linear.bytes);
    if (buffers != nullptr) *buffers = b;
    return carver.used();
}

std::int64_t Model::bytes(const Args& args) { return lay_out(args, nullptr, nullptr); }

Result<Model> Model::make(const Args& args) {
    CHECK(args.transfers != nullptr && args.communicator != nullptr && args.kv != nullptr);
    ASSIGN_OR_RETURN(Arena memory, args.device.reserve("activations", bytes(args)));
    RETURN_IF_ERROR(memory.commit());
    return Model(args, std::move(memory));
}

Model::Model(const Args& args, Arena memory)
    : config_(&args.config),
      shard_(args.shard),
      sizes_(args.sizes),
      ops_(&args.device.ops()),
      stream_(args.device.stream()),
      transfers_(args.transfers),
      communicator_(args.communicator),
      kv_(args.kv),
      layer_kv_(kv_of_layer(args.sizes, args.config, args.shard, args.compute)),
      memory_(std::move(memory)),
      has_graphs_(args.has_graphs),
      graphs_(args.graph_bytes_max) {
    lay_out(args, memory_.data(), &buffers_);
    fill_rope_tables(args.device);
    if (args.device.is_cuda()) kernels::fill_device(buffers_.arrivals, 0, kArrivalsBytes, stream_);
}

// The angle is rounded to fp32 before its sine is taken, as in transformers and the trainers that
// use it: at position 100,000 the rounding moves an angle by up to 0.004 radians, and the engine
// should be off by the same. YaRN's factor multiplies what was rounded, there as here.
void Model::fill_rope_tables(const Device& device) {
    const auto factor = static_cast<float>(config_->rope.attention_factor);
    const std::vector<float> frequencies = rope_frequencies(config_->rope, config_->head_dim);
    const std::int64_t num_bytes = buffers_.cos.rows * buffers_.cos.cols * 4;
    std::vector<float> host(static_cast<std::size_t>(device.is_cuda() ? num_bytes / 2 : 0));
    View2<float> host_cos = buffers_.cos;
    View2<float> host_sin = buffers_.sin;
    if (device.is_cuda()) {
        host_cos.data = host.data();
        host_sin.data = host.data() + num_bytes / 4;
    }
    auto fill = [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
        for (std::int64_t position = begin; position < end; ++position) {
            const std::span cos = row(host_cos, position);
            const std::span sin = row(host_sin, position);
            for (std::size_t i = 0; i < frequencies.size(); ++i) {
                const float angle = static_cast<float>(position) * frequencies[i];
                cos[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
                sin[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
            }
        }
    };
    kernels::parallel_for(device.host_stream(), sizes_.num_positions, /*grain=*/256, fill);
    if (!device.is_cuda()) return;
    kernels::copy_and_wait(buffers_.cos.data, host_cos.data, num_bytes);
    kernels::copy_and_wait(buffers_.sin.data, host_sin.data, num_bytes);
}

Result<> Model::sum_over_ranks(View2<float> x) {
    CHECK(x.stride == x.cols);
    return communicator_->all_reduce_sum({x.data, static_cast<std::size_t>(x.rows * x.cols)});
}

std::int64_t transfer_bytes(const StepBatch& batch) {
    const auto bytes = [](auto array) {
        return Transfers::bytes_of(static_cast<std::int64_t>(array.size_bytes()));
    };
    return bytes(batch.tokens) + bytes(batch.positions) + bytes(batch.kv_slots) +
           bytes(batch.q_starts) + bytes(batch.kv_lens) + bytes(batch.page_starts) +
           bytes(batch.pages);
}

Result<StepBatch> Model::place(const StepBatch& batch) {
    if (transfer_bytes(batch) > transfers_->bytes_left()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a step with {} bytes of tokens and pages; this worker has room for {}",
            transfer_bytes(batch),
            transfers_->bytes_left()
        );
    }
    const auto move = [&](auto& array) { array = {transfers_->in(array), array.size()}; };
    StepBatch placed = batch;
    move(placed.tokens);
    move(placed.positions);
    move(placed.kv_slots);
    move(placed.q_starts);
    move(placed.kv_lens);
    move(placed.page_starts);
    move(placed.pages);
    return placed;
}

kernels::LinearArgs Model::product(
    Product which,
    const ModelWeights& weights,
    std::size_t layer_index,
    std::int64_t num_rows,
    Parts& parts
) const {
    const std::int64_t T = num_rows;
    const LayerWeights& layer = weights.layers[layer_index];
    // A bias of a sum over the ranks is added once, by the rank that comes first in it.
    const bool is_first = raw(communicator_->rank()) == 0;
    kernels::LinearArgs args{.workspace = buffers_.linear, .stream = stream_};
    std::size_t num = 1;
    switch (which) {
        case Product::kQkv:
            args.x = rows(buffers_.normed, 0, T);
            parts[0] = {.w = layer.q, .bias = layer.q_bias, .y = rows(buffers_.q, 0, T)};
            parts[1] = {.w = layer.k, .bias = layer.k_bias, .y = rows(buffers_.k, 0, T)};
            parts[2] = {.w = layer.v, .bias = layer.v_bias, .y = rows(buffers_.v, 0, T)};
            num = 3;
            break;
        case Product::kO:
            args.x = rows(buffers_.attended, 0, T);
            parts[0] = {
                .w = layer.o,
                .bias = is_first ? layer.o_bias : nullptr,
                .y = rows(buffers_.delta, 0, T)};
            break;
        case Product::kGateUp:
            args.x = rows(buffers_.normed, 0, T);
            parts[0] = {.w = layer.gate, .bias = layer.gate_bias, .y = rows(buffers_.gate, 0, T)};
            parts[1] = {.w = layer.up, .bias = layer.up_bias, .y = rows(buffers_.up, 0, T)};
            num = 2;
            break;
        case Product::kDown:
            args.x = rows(buffers_.gated, 0, T);
            parts[0] = {
                .w = layer.down,
                .bias = is_first ? layer.down_bias : nullptr,
                .y = rows(buffers_.delta, 0, T)};
            break;
        case Product::kHead:
            args.x = rows(buffers_.head_normed, 0, T);
            parts[0] = {.w = weights.head, .y = rows(buffers_.head_part, 0, T)};
            break;
    }
    args.parts = std::span(parts).first(num);
    return args;
}

int Model::tune(Product which, const ModelWeights& weights, std::int64_t num_rows) {
    constexpr std::size_t kRotationMax = 8;  // layers, whose weights together are beyond the caches
    const std::size_t num =
        which == Product::kHead ? 1 : std::min(kRotationMax, weights.layers.size());
    std::array<Parts, kRotationMax> parts{};
    std::vector<kernels::LinearArgs> rotation;
    for (std::size_t i = 0; i < num; ++i)
        rotation.push_back(product(which, weights, i, num_rows, parts[i]));
    return ops_->tune_linear(rotation);
}

int Model::tune(const ModelWeights& weights) {
    if (ops_->tune_linear == nullptr) return 0;
    int num_timed = 0;
    const auto tune_up_to = [&](Product which, std::int64_t rows_max) {
        for (std::int64_t M = 1; M <= rows_max; M = kernels::gemm_bucket(M) + 1)
            num_timed += tune(which, weights, std::min(kernels::gemm_bucket(M), rows_max));
    };
    for (const Product which : {Product::kQkv, Product::kO, Product::kGateUp, Product::kDown})
        tune_up_to(which, sizes_.tokens_max);
    tune_up_to(Product::kHead, sizes_.logit_rows_max);
    return num_timed;
}

// normed -> delta: this rank's heads.
void Model::attend(const ModelWeights& weights, std::size_t index, const StepBatch& there) {
    const LayerWeights& layer = weights.layers[index];
    const auto T = static_cast<std::int64_t>(there.tokens.size());
    const kernels::ActView q = rows(buffers_.q, 0, T);
    const kernels::ActView k = rows(buffers_.k, 0, T);
    const kernels::ActView v = rows(buffers_.v, 0, T);
    const kernels::ActView rotated = rows(buffers_.rotated, 0, T);
    const kernels::ActView attended = rows(buffers_.attended, 0, T);
    Parts parts;
    ops_->linear(product(Product::kQkv, weights, index, T, parts));

    kernels::KvCache kv = layer_kv_;
    kv.data = kv_ + static_cast<std::int64_t>(index) * kv_bytes(layer_kv_);
    ops_->rope({
        .q = q,
        .k = k,
        .v = v,
        .q_out = rotated,
        .kv = kv,
        .slots = there.kv_slots.data(),
        .positions = there.positions.data(),
        .cos = buffers_.cos,
        .sin = buffers_.sin,
        .q_norm = layer.q_norm,
        .k_norm = layer.k_norm,
        .norm_eps = static_cast<float>(config_->norm_eps),
        .stream = stream_,
    });
    const std::optional<std::int64_t> window = config_->windows[index];
    ops_->attention({
        .q = rotated,
        .out = attended,
        .kv = kv,
        .num_q_heads = narrow(shard_.num_q_heads),
        .num_rows = narrow(static_cast<std::int64_t>(there.kv_lens.size())),
        .q_starts = there.q_starts.data(),
        .kv_lens = there.kv_lens.data(),
        .pages = there.pages.data(),
        .page_starts = there.page_starts.data(),
        .kv_len_max = there.kv_len_max,
        .q_len_max = there.q_len_max,
        .window = window ? narrow(*window) : kernels::kNoWindow,
        .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_->head_dim))),
        .workspace = buffers_.attention,
        .arrivals = buffers_.arrivals,
        .stream = stream_,
    });
    ops_->linear(product(Product::kO, weights, index, T, parts));
}

// normed -> delta: this rank's columns of the MLP.
void Model::feed_forward(const ModelWeights& weights, std::size_t index, std::int64_t num_tokens) {
    const std::int64_t T = num_tokens;
    const kernels::ActView gate = rows(buffers_.gate, 0, T);
    const kernels::ActView up = rows(buffers_.up, 0, T);
    const kernels::ActView gated = rows(buffers_.gated, 0, T);
    Parts parts;
    const kernels::LinearArgs gate_up = product(Product::kGateUp, weights, index, T, parts);
    if (ops_->linear_silu_mul == nullptr || !ops_->linear_silu_mul(gate_up, gated)) {
        ops_->linear(gate_up);
        ops_->silu_mul({.gate = gate, .up = up, .y = gated, .stream = stream_});
    }
    ops_->linear(product(Product::kDown, weights, index, T, parts));
}

Result<> Model::forward(const StepBatch& placed, const ModelWeights& weights) {
    CHECK(static_cast<std::int64_t>(placed.tokens.size()) <= sizes_.tokens_max);
    is_summed_ = false;
    return run_layers(placed, weights);
}

Result<> Model::decode(const StepBatch& placed, const ModelWeights& weights) {
    const auto T = static_cast<std::int64_t>(placed.tokens.size());
    CHECK(T <= sizes_.tokens_max && T <= sizes_.logit_rows_max);
    const auto enqueue = [&]() -> Result<> {
        RETURN_IF_ERROR(run_layers(placed, weights));
        run_head(rows(buffers_.x, 0, T), rows(buffers_.delta, 0, T), weights);
        return Ok{};
    };
    const StepGraphs::Shape shape{
        .weights = weights.embedding.data, .inputs = placed.tokens.data(), .num_rows = T};
    RETURN_IF_ERROR(has_graphs_ ? graphs_.run(shape, stream_, enqueue) : enqueue());
    is_summed_ = true;
    return Ok{};
}

Result<> Model::run_layers(const StepBatch& there, const ModelWeights& weights) {
    const auto T = static_cast<std::int64_t>(there.tokens.size());
    const View2<float> x = rows(buffers_.x, 0, T);
    const View2<float> delta = rows(buffers_.delta, 0, T);
    const kernels::ActView normed = rows(buffers_.normed, 0, T);
    const auto eps = static_cast<float>(config_->norm_eps);

    ops_->embedding({
        .ids = there.tokens.data(),
        .sampled = there.sampled,
        .table = weights.embedding,
        .vocab_begin = shard_.vocab_begin,
        .y = x,
        .stream = stream_,
    });
    RETURN_IF_ERROR(sum_over_ranks(x));
    View2<const float> last_delta{};  // what x still lacks
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
        const LayerWeights& layer = weights.layers[i];
        ops_->rmsnorm(
            {.x = x,
             .delta = last_delta,
             .w = layer.input_norm,
             .y = normed,
             .eps = eps,
             .stream = stream_}
        );
        attend(weights, i, there);
        RETURN_IF_ERROR(sum_over_ranks(delta));
        ops_->rmsnorm(
            {.x = x,
             .delta = delta,
             .w = layer.post_norm,
             .y = normed,
             .eps = eps,
             .stream = stream_}
        );
        feed_forward(weights, i, T);
        RETURN_IF_ERROR(sum_over_ranks(delta));
        last_delta = delta;
    }
    return Ok{};  // run_head() adds the last delta, to the rows that are asked for
}

// Gathers the rows first.
void Model::logits(
    const std::int32_t* token_rows, std::int64_t num_rows, const ModelWeights& weights
) {
    CHECK(num_rows <= sizes_.logit_rows_max);
    const View2<float> x = rows(buffers_.head_x, 0, num_rows);
    ops_->gather_rows({.x = buffers_.x, .row_index = token_rows, .y = x, .stream = stream_});
    if (is_summed_) return run_head(x, {}, weights);
    const View2<float> delta = rows(buffers_.head_delta, 0, num_rows);
    ops_->gather_rows({.x = buffers_.delta, .row_index = token_rows, .y = delta, .stream = stream_}
    );
    return run_head(x, delta, weights);
}

RowLogits Model::logits_of(std::int64_t num_rows) const {
    RowLogits logits{.part = rows(buffers_.head_part, 0, num_rows)};
    if (raw(communicator_->rank()) == 0) logits.whole = rows(buffers_.head_whole, 0, num_rows);
    return logits;
}

void Model::run_head(View2<float> x, View2<const float> delta, const ModelWeights& weights) {
    const std::int64_t L = x.rows;
    ops_->rmsnorm({
        .x = x,
        .delta = delta,
        .w = weights.final_norm,
        .y = rows(buffers_.head_normed, 0, L),
        .eps = static_cast<float>(config_->norm_eps),
        .stream = stream_,
    });
    Parts parts;
    ops_->linear(product(Product::kHead, weights, 0, L, parts));
}

}  // namespace pitstop::tp_worker
