// Maps each place of a rank's shard to an element of the whole tensor, as the comments at the
// top of tp_worker/blocks define it: element by element, without rectangles. The tests'
// reference.
#pragma once

#include "tp_worker/blocks/vocabulary.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

class ShardDefinition {
  public:
    // `ffns`: the size of each rank's slice of the FFN. The layout chooses the sizes; the
    // definition only orders the slices by rank.
    ShardDefinition(const ModelConfig& config, std::int64_t rank, std::vector<std::int64_t> ffns)
        : config_(config),
          rank_(rank),
          tp_(static_cast<std::int64_t>(ffns.size())),
          ffns_(std::move(ffns)) {}

    // The index in the whole tensor, row-major, of the shard's element (row, col). Nothing:
    // padding.
    [[nodiscard]] std::optional<std::int64_t> element(
        const WeightTensor& tensor, std::int64_t row, std::int64_t col
    ) const {
        const std::string_view name = tensor.name;
        const auto is = [&](std::string_view part) { return name.find(part) != name.npos; };
        // A projection's bias is split like the rows of its matrix; it is one row itself.
        const bool is_bias = name.ends_with(".bias");
        std::int64_t& out = is_bias ? col : row;
        if (name == kEmbeddingName || name == kHeadName) {
            row += rank_ * ((config_.vocab_len + tp_ - 1) / tp_);
            if (row >= config_.vocab_len) return std::nullopt;
        } else if (is("q_proj")) {
            out = of_head(out, rank_ * num_q_heads() + out / config_.head_dim);
        } else if (is("k_proj") || is("v_proj")) {
            out = of_head(out, kv_head(out / config_.head_dim, tensor, is_bias));
        } else if (is("gate_proj") || is("up_proj")) {
            out += ffn_begin();
        } else if (is("o_proj.weight")) {
            col = of_head(col, rank_ * num_q_heads() + col / config_.head_dim);
        } else if (is("down_proj.weight")) {
            col += ffn_begin();
        }
        return row * tensor.shape.back() + col;
    }

  private:
    [[nodiscard]] std::int64_t num_q_heads() const { return config_.num_q_heads / tp_; }
    [[nodiscard]] std::int64_t of_head(std::int64_t local, std::int64_t head) const {
        return head * config_.head_dim + local % config_.head_dim;
    }
    [[nodiscard]] std::int64_t ffn_begin() const {
        std::int64_t begin = 0;
        for (std::int64_t i = 0; i < rank_; ++i) begin += ffns_[static_cast<std::size_t>(i)];
        return begin;
    }
    // The KV head of all query heads that read the rank's KV head `local`; -1: they need
    // several.
    [[nodiscard]] std::int64_t kv_head(std::int64_t local, const WeightTensor& tensor, bool is_bias)
        const {
        const std::int64_t num_local = (is_bias ? tensor.cols : tensor.rows) / config_.head_dim;
        const std::int64_t readers = num_q_heads() / num_local;
        std::optional<std::int64_t> head;
        for (std::int64_t h = local * readers; h < (local + 1) * readers; ++h) {
            const std::int64_t needed =
                (rank_ * num_q_heads() + h) * config_.num_kv_heads / config_.num_q_heads;
            if (head.value_or(needed) != needed) return -1;
            head = needed;
        }
        return head.value_or(-1);
    }

    const ModelConfig& config_;
    std::int64_t rank_;
    std::int64_t tp_;
    std::vector<std::int64_t> ffns_;
};

}  // namespace pitstop::tp_worker
