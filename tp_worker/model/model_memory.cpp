// Lays out the model's memory: says where each buffer lies, and what it holds from the start.
#include "kernels/thread_pool.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/narrow.h"
#include "tp_worker/model/step_padding.h"

#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 256;  // bytes: a GPU's workspaces

}  // namespace

// Cuts buffers out of a range, one after the other. From null it only counts.
class Model::Carver {
  public:
    explicit Carver(std::byte* memory) : memory_(memory) {}

    void* take(std::int64_t bytes) {
        void* start = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        return start;
    }
    template <class T>
    T* array(std::int64_t num) {
        return static_cast<T*>(take(num * std::int64_t{sizeof(T)}));
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

namespace {

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

// Lays out the rows of padded steps, and the pages of all requests.
void Model::lay_out_rows(const Args& args, Carver& carver, Buffers& b) {
    constexpr std::int64_t R = kPaddedRowsMax;
    const ModelSizes& sizes = args.sizes;
    const std::int64_t num_entries =
        StepUpdates::num_entries(args.num_slots, sizes.num_positions, sizes.page_size);
    b.tables = {carver.array<PageId>(num_entries), static_cast<std::size_t>(num_entries)};
    b.rows = {
        .page_size = narrow(sizes.page_size),
        .slot_pages = narrow(StepUpdates::slot_pages(sizes.num_positions, sizes.page_size)),
        .num_slots = narrow(args.num_slots),
        .scratch_page = narrow(sizes.num_pages),
        .tokens = carver.array<TokenId>(R),
        .positions = carver.array<std::int32_t>(R),
        .kv_slots = carver.array<std::int64_t>(R),
        .kv_lens = carver.array<std::int32_t>(R),
        .page_starts = carver.array<std::int32_t>(R),
        .tables = b.tables.data(),
    };
    b.q_starts = carver.array<std::int32_t>(R + 1);
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
    if (args.device.is_cuda()) lay_out_rows(args, carver, b);
    b.linear.bytes = ops.linear_workspace_bytes();
    b.linear.data = carver.take(b.linear.bytes);
    if (buffers != nullptr) *buffers = b;
    return carver.used();
}

std::int64_t Model::bytes(const Args& args) { return lay_out(args, nullptr, nullptr); }

Result<Model> Model::make(const Args& args) {
    CHECK(args.transfers != nullptr && args.communicator != nullptr && args.kv != nullptr);
    const ModelSizes& sizes = args.sizes;
    const std::int64_t num_entries =
        StepUpdates::num_entries(args.num_slots, sizes.num_positions, sizes.page_size);
    if (args.device.is_cuda() && num_entries > StepUpdates::kEntriesMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} requests of {} positions have {} pages of {} tokens; accepted are {}",
            args.num_slots,
            sizes.num_positions,
            num_entries,
            sizes.page_size,
            StepUpdates::kEntriesMax
        );
    }
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
    if (!args.device.is_cuda()) return;
    kernels::fill_device(buffers_.arrivals, 0, kArrivalsBytes, stream_);
    updates_.emplace(args.num_slots, sizes_.num_positions, sizes_.page_size);
    fill_padding();
}

// Writes what no update brings: the pages of padding, and that each row of a padded step has one
// token.
void Model::fill_padding() {
    std::vector<PageId> pages;
    for (std::int64_t i = 0; i < num_scratch_pages(sizes_.page_size); ++i)
        pages.push_back(static_cast<PageId>(narrow(sizes_.num_pages + i)));
    const std::span there = buffers_.tables.last(pages.size());
    kernels::copy_and_wait(
        there.data(), pages.data(), static_cast<std::int64_t>(there.size_bytes())
    );
    std::vector<std::int32_t> q_starts(kPaddedRowsMax + 1);
    std::iota(q_starts.begin(), q_starts.end(), 0);
    kernels::copy_and_wait(
        buffers_.q_starts,
        q_starts.data(),
        static_cast<std::int64_t>(q_starts.size() * sizeof(std::int32_t))
    );
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

}  // namespace pitstop::tp_worker
