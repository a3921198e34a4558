#include "tp_worker/weights/weight_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes: a cache line, and what wide loads like
constexpr std::int64_t kWordLen = 4;     // elements in a word of the digest

enum class SplitAxis : std::uint8_t { kNone, kRows, kCols };

std::string layer_name(std::int64_t layer, std::string_view tail) {
    return fmt::format("model.layers.{}.{}", layer, tail);
}

}  // namespace

ShardPart ShardPart::cut(std::int64_t begin, std::int64_t num) const {
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, rows);
    const std::int64_t end = std::clamp<std::int64_t>(begin + num, first, rows);
    ShardPart part = *this;
    part.rows = end - first;
    part.whole_row += first;
    part.shard_row += first;
    return part;
}

class LayoutBuilder {
  public:
    LayoutBuilder(const ModelConfig& config, Rank rank, int tp, ExtraTensors extra)
        : config_(config), rank_(raw(rank)), tp_(tp) {
        layout_.extra_ = extra;
    }

    Result<WeightLayout> build() {
        RETURN_IF_ERROR(check_split());
        set_shape();
        add_all();
        place();
        return std::move(layout_);
    }

  private:
    // Describes a part of the axis that is split.
    struct Range {
        std::int64_t begin = 0;
        std::int64_t num = 0;
        std::int64_t index = 0;
    };
    struct Parts {
        std::vector<Range> ranges{};  // back to back in the shard, in this order
        bool cuts_words = false;      // true where some rank's does
    };

    Result<> check_split() const {
        CHECK(tp_ >= 1 && rank_ >= 0 && rank_ < tp_);
        std::vector<std::string> problems;
        if (config_.num_q_heads % tp_ != 0) {
            problems.push_back(fmt::format("{} attention heads", config_.num_q_heads));
        }
        if (config_.ffn < tp_ * kWordLen) {
            problems.push_back(fmt::format("an intermediate size of only {}", config_.ffn));
        }
        if (tp_ > kTpMax) problems.push_back(fmt::format("more than {} ranks", kTpMax));
        if (problems.empty()) return Ok{};
        return make_error(
            ErrorCode::kUnsupported,
            "this model cannot be split over tp {}: {}",
            tp_,
            fmt::join(problems, ", ")
        );
    }

    void set_shape() {
        ShardShape& shape = layout_.shape_;
        shape.num_q_heads = config_.num_q_heads / tp_;
        const std::int64_t group = config_.num_q_heads / config_.num_kv_heads;
        queries_per_copy_ = std::gcd(group, shape.num_q_heads);
        shape.num_kv_heads = shape.num_q_heads / queries_per_copy_;
        shape.ffn = ffn_parts().ranges.front().num;
        shape.vocab_rows = (config_.vocab_len + tp_ - 1) / tp_;
        shape.vocab_begin = rank_ * shape.vocab_rows;
        shape.vocab_len =
            std::clamp<std::int64_t>(config_.vocab_len - shape.vocab_begin, 0, shape.vocab_rows);
        layout_.tied_embeddings_ = config_.tied_embeddings;
    }

    // Makes even shares of `whole`, which tp divides.
    Parts share(std::int64_t whole) const {
        const std::int64_t num = whole / tp_;
        return {
            {{.begin = rank_ * num, .num = num, .index = rank_}}, tp_ > 1 && num % kWordLen != 0};
    }

    // Splits the FFN in whole units, as even as they go: tp need not divide it, and a cut of down's
    // rows falls between two words of the digest.
    Parts ffn_parts() const {
        const std::int64_t num_units = config_.ffn / kWordLen;
        const auto begin_of = [&](std::int64_t rank) {
            return rank == tp_ ? config_.ffn : num_units * rank / tp_ * kWordLen;
        };
        const std::int64_t begin = begin_of(rank_);
        return {{{.begin = begin, .num = begin_of(rank_ + 1) - begin, .index = rank_}}};
    }

    // Splits rows of k or v, or their biases: into even shares where tp divides the heads; else
    // into a part per copy of a head.
    Parts kv_parts() const {
        const std::int64_t dim = config_.head_dim;
        if (has_even_kv()) return share(config_.num_kv_heads * dim);
        const std::int64_t group = config_.num_q_heads / config_.num_kv_heads;
        Parts parts{.cuts_words = dim % kWordLen != 0};
        for (std::int64_t copy = 0; copy < layout_.shape_.num_kv_heads; ++copy) {
            const std::int64_t q_head =
                rank_ * layout_.shape_.num_q_heads + copy * queries_per_copy_;
            const std::int64_t head = q_head / group;
            parts.ranges.push_back({.begin = head * dim, .num = dim, .index = head});
        }
        return parts;
    }

    bool has_even_kv() const { return config_.num_kv_heads % tp_ == 0; }

    void add(
        std::string name, std::vector<std::int64_t> shape, SplitAxis axis, const Parts& parts
    ) {
        WeightTensor tensor;
        tensor.name = std::move(name);
        tensor.whole_rows = shape.size() == 2 ? shape[0] : 1;
        tensor.whole_cols = shape.back();
        tensor.shape = std::move(shape);
        tensor.cuts_words = axis == SplitAxis::kCols && parts.cuts_words;
        std::int64_t num = 0;
        for (const Range& range : parts.ranges) num += range.num;
        tensor.rows = axis == SplitAxis::kRows ? num : tensor.whole_rows;
        tensor.cols = axis == SplitAxis::kCols ? num : tensor.whole_cols;
        tensor.num_parts = tp_;
        std::int64_t shard_at = 0;  // along the axis that is split
        for (const Range& range : parts.ranges) {
            ShardPart part{
                .index = range.index,
                .rows = tensor.rows,
                .cols = tensor.cols,
                .whole_stride = tensor.whole_cols,
                .shard_stride = tensor.cols};
            if (axis == SplitAxis::kRows) {
                part.rows = range.num;
                part.whole_row = range.begin;
                part.shard_row = shard_at;
            } else if (axis == SplitAxis::kCols) {
                part.cols = range.num;
                part.whole_col = range.begin;
                part.shard_col = shard_at;
            }
            shard_at += range.num;
            tensor.parts.push_back(part);
        }
        layout_.tensors_.push_back(std::move(tensor));
    }

    void add_whole(std::string name, std::vector<std::int64_t> shape) {
        const std::int64_t rows = shape.size() == 2 ? shape[0] : 1;
        add(std::move(name), std::move(shape), SplitAxis::kNone, {{{.num = rows}}});
        layout_.tensors_.back().num_parts = 1;
    }

    void add_kv(std::string name, std::vector<std::int64_t> shape, SplitAxis axis) {
        add(std::move(name), std::move(shape), axis, kv_parts());
        if (!has_even_kv()) layout_.tensors_.back().num_parts = config_.num_kv_heads;
    }

    void add_vocab(std::string name) {
        const ShardShape& shape = layout_.shape_;
        add(std::move(name),
            {config_.vocab_len, config_.hidden},
            SplitAxis::kRows,
            {{{.begin = std::min(shape.vocab_begin, config_.vocab_len),
               .num = shape.vocab_len,
               .index = rank_}}});
        layout_.tensors_.back().rows = shape.vocab_rows;
    }

    void add_layer(std::int64_t layer) {
        const std::int64_t H = config_.hidden;
        const std::int64_t F = config_.ffn;
        const std::int64_t QD = config_.num_q_heads * config_.head_dim;
        const std::int64_t KD = config_.num_kv_heads * config_.head_dim;
        const auto name = [&](std::string_view tail) { return layer_name(layer, tail); };

        add_whole(name("input_layernorm.weight"), {H});
        add_whole(name("post_attention_layernorm.weight"), {H});
        add(name("self_attn.q_proj.weight"), {QD, H}, SplitAxis::kRows, share(QD));
        add_kv(name("self_attn.k_proj.weight"), {KD, H}, SplitAxis::kRows);
        add_kv(name("self_attn.v_proj.weight"), {KD, H}, SplitAxis::kRows);
        add(name("self_attn.o_proj.weight"), {H, QD}, SplitAxis::kCols, share(QD));
        if (config_.qkv_bias) {
            add(name("self_attn.q_proj.bias"), {QD}, SplitAxis::kCols, share(QD));
            add_kv(name("self_attn.k_proj.bias"), {KD}, SplitAxis::kCols);
            add_kv(name("self_attn.v_proj.bias"), {KD}, SplitAxis::kCols);
        }
        if (config_.o_bias) add_whole(name("self_attn.o_proj.bias"), {H});
        if (config_.qk_norm) {
            add_whole(name("self_attn.q_norm.weight"), {config_.head_dim});
            add_whole(name("self_attn.k_norm.weight"), {config_.head_dim});
        }
        add(name("mlp.gate_proj.weight"), {F, H}, SplitAxis::kRows, ffn_parts());
        add(name("mlp.up_proj.weight"), {F, H}, SplitAxis::kRows, ffn_parts());
        add(name("mlp.down_proj.weight"), {H, F}, SplitAxis::kCols, ffn_parts());
        if (config_.mlp_bias) {
            add(name("mlp.gate_proj.bias"), {F}, SplitAxis::kCols, ffn_parts());
            add(name("mlp.up_proj.bias"), {F}, SplitAxis::kCols, ffn_parts());
            add_whole(name("mlp.down_proj.bias"), {H});
        }
    }

    void add_all() {
        add_vocab(std::string(kEmbeddingName));
        for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) add_layer(layer);
        add_whole("model.norm.weight", {config_.hidden});
        if (!config_.tied_embeddings) add_vocab(std::string(kHeadName));
    }

    // They are placed in the order added, which is the order of use; then listed by name.
    void place() {
        std::int64_t end = 0;
        for (WeightTensor& tensor : layout_.tensors_) {
            tensor.offset = end;
            end += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
        }
        layout_.bytes_ = end;
        std::sort(
            layout_.tensors_.begin(),
            layout_.tensors_.end(),
            [](const WeightTensor& a, const WeightTensor& b) { return a.name < b.name; }
        );
        for (std::size_t i = 0; i < layout_.tensors_.size(); ++i) {
            layout_.by_name_.emplace(layout_.tensors_[i].name, i);
        }
    }

    const ModelConfig& config_;
    std::int64_t rank_;
    std::int64_t tp_;
    std::int64_t queries_per_copy_ = 1;
    WeightLayout layout_{};
};

Result<WeightLayout> WeightLayout::make(
    const ModelConfig& config, Rank rank, int tp, ExtraTensors extra
) {
    return LayoutBuilder(config, rank, tp, extra).build();
}

const WeightTensor* WeightLayout::find(std::string_view name) const {
    const auto place = by_name_.find(name);
    return place == by_name_.end() ? nullptr : &tensors_[place->second];
}

// Such a name is "model.layers.3.self_attn.rotary_emb.inv_freq".
bool WeightLayout::is_rotary_table(std::string_view name) {
    return name.ends_with(".rotary_emb.inv_freq") && name.starts_with("model.");
}

bool WeightLayout::is_ignored(std::string_view name) const {
    if (find(name) != nullptr || is_tied_head(name)) return false;
    return is_rotary_table(name) || extra_ == ExtraTensors::kIgnore;
}

std::size_t offered_max(const WeightLayout& layout) {
    return std::max(kOfferedMin, kOfferedPerTensor * layout.tensors().size());
}

std::vector<std::string> find_problems(
    const WeightLayout& layout,
    std::span<const checkpoint::TensorSpec> offered,
    Completeness completeness
) {
    std::vector<std::string> problems;
    std::set<std::string_view> seen;
    for (const checkpoint::TensorSpec& spec : offered) {
        const WeightTensor* tensor =
            layout.find(layout.is_tied_head(spec.name) ? kEmbeddingName : spec.name);
        if (tensor == nullptr) {
            if (layout.is_ignored(spec.name)) continue;
            problems.push_back(fmt::format(
                "'{}' is no tensor of this model (--ignore-extra-tensors leaves such out)",
                spec.name
            ));
            continue;
        }
        if (!seen.insert(spec.name).second) {
            problems.push_back(fmt::format("'{}' is there twice", spec.name));
        }
        if (spec.shape != tensor->shape) {
            problems.push_back(fmt::format(
                "'{}' has shape {}; the config says {}",
                spec.name,
                checkpoint::text_of(spec.shape),
                checkpoint::text_of(tensor->shape)
            ));
        }
        if (!is_accepted(tensor->encoding, spec.dtype)) {
            problems.push_back(fmt::format(
                "'{}' has dtype {}; {} are accepted",
                spec.name,
                name_of(spec.dtype),
                accepted_dtypes(tensor->encoding)
            ));
        }
    }
    if (completeness == Completeness::kPartial) return problems;
    for (const WeightTensor& tensor : layout.tensors()) {
        const bool is_there = seen.contains(tensor.name) ||
                              (tensor.name == kEmbeddingName && layout.is_tied_head(kHeadName) &&
                               seen.contains(kHeadName));
        if (!is_there) {
            problems.push_back(fmt::format("'{}' is missing", tensor.name));
        }
    }
    return problems;
}

Error error_of(std::string_view source, std::span<const std::string> problems) {
    const std::size_t num_shown = std::min(problems.size(), kProblemsShownMax);
    std::string text = fmt::format("{}", fmt::join(problems.first(num_shown), "; "));
    if (problems.size() > num_shown) {
        text += fmt::format("; and {} more", problems.size() - num_shown);
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "'{}' does not hold this model's weights, {} problem(s): {}",
        source,
        problems.size(),
        text
    );
}

ModelWeights bind_weights(
    const WeightLayout& layout, const ModelConfig& config, const std::byte* arena
) {
    const auto matrix = [&](const std::string& name) -> View2<const bf16> {
        const WeightTensor* tensor = layout.find(name);
        CHECK(tensor != nullptr);
        const auto* data = reinterpret_cast<const bf16*>(arena + tensor->offset);
        return view2(data, tensor->rows, tensor->cols);
    };
    ModelWeights weights;
    weights.embedding = matrix(std::string(kEmbeddingName));
    weights.head = config.tied_embeddings ? weights.embedding : matrix(std::string(kHeadName));
    weights.final_norm = matrix("model.norm.weight").data;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        const auto part = [&](std::string_view tail) { return matrix(layer_name(i, tail)); };
        const auto part_if = [&](bool has, std::string_view tail) {
            return has ? part(tail).data : nullptr;
        };
        weights.layers.push_back({
            .input_norm = part("input_layernorm.weight").data,
            .q = part("self_attn.q_proj.weight"),
            .k = part("self_attn.k_proj.weight"),
            .v = part("self_attn.v_proj.weight"),
            .q_bias = part_if(config.qkv_bias, "self_attn.q_proj.bias"),
            .k_bias = part_if(config.qkv_bias, "self_attn.k_proj.bias"),
            .v_bias = part_if(config.qkv_bias, "self_attn.v_proj.bias"),
            .q_norm = part_if(config.qk_norm, "self_attn.q_norm.weight"),
            .k_norm = part_if(config.qk_norm, "self_attn.k_norm.weight"),
            .o = part("self_attn.o_proj.weight"),
            .o_bias = part_if(config.o_bias, "self_attn.o_proj.bias"),
            .post_norm = part("post_attention_layernorm.weight").data,
            .gate = part("mlp.gate_proj.weight"),
            .up = part("mlp.up_proj.weight"),
            .down = part("mlp.down_proj.weight"),
            .gate_bias = part_if(config.mlp_bias, "mlp.gate_proj.bias"),
            .up_bias = part_if(config.mlp_bias, "mlp.up_proj.bias"),
            .down_bias = part_if(config.mlp_bias, "mlp.down_proj.bias"),
        });
    }
    return weights;
}

}  // namespace pitstop::tp_worker
