// Rows of logits through a sampler of one rank.
#pragma once

#include "base/isa.h"
#include "tp_worker/model/request_state.h"
#include "tp_worker/model/sampler.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// Each row has a request of its own.
class SampledRows {
  public:
    // Adds a request and a row that samples its output token `output_index`.
    void add_sample(
        messages::RequestSetup setup, std::vector<float> logits, std::int64_t output_index = 0
    ) {
        add(std::move(setup), std::move(logits));
        LogitRow& row = rows_.back();
        row.output_index = output_index;
        row.entry = num_sampled_++;
        row.top_begin = num_top_;
        row.ids_begin = num_ids_;
        num_top_ += static_cast<std::size_t>(options_of(row).top);
        num_ids_ += options_of(row).ids.size();
    }
    void add_score(messages::RequestSetup setup, std::vector<float> logits, TokenId target) {
        add(std::move(setup), std::move(logits));
        LogitRow& row = rows_.back();
        row.kind = LogitRow::Kind::kScore;
        row.target = target;
        row.entry = num_scored_++;
        row.top_begin = num_scored_top_;
        num_scored_top_ += static_cast<std::size_t>(options_of(row).top);
    }

    messages::StepResult run() {
        const std::int64_t V = vocab_len_;
        const auto n = static_cast<std::int64_t>(rows_.size());
        const Device device = Device::on_cpu(best_isa(), nullptr);
        Result<Transfers> transfers = Transfers::make(device, 0);
        EXPECT_TRUE(transfers.has_value());
        Result<Sampler> sampler = Sampler::make(
            {.device = device, .transfers = &*transfers, .sizes = {.rows_max = n, .vocab_len = V}}
        );
        EXPECT_TRUE(sampler.has_value());
        messages::StepResult result;
        result.sampled.values.resize(num_sampled_);
        result.logprobs.values.resize(num_sampled_);
        result.ranks.values.resize(num_sampled_);
        result.top_ids.values.resize(num_top_, TokenId{-1});
        result.top_logprobs.values.resize(num_top_);
        result.ids_logprobs.values.resize(num_ids_);
        result.scores.logprobs.values.resize(num_scored_);
        result.scores.ranks.values.resize(num_scored_);
        result.scores.top_ids.values.resize(num_scored_top_, TokenId{-1});
        result.scores.top_logprobs.values.resize(num_scored_top_);
        const RowLogits logits{view2(logits_.data(), n, V), view2(logits_.data(), n, V)};
        const Result<std::vector<TokenId>> ids = sampler->run(logits, rows_, slots_, &result);
        EXPECT_TRUE(ids.has_value());
        ids_ = *ids;
        return result;
    }

    // The last run's draws, by row. For a scored row: 0, or kNotFiniteDraw.
    [[nodiscard]] const std::vector<TokenId>& ids() const { return ids_; }

  private:
    void add(messages::RequestSetup setup, std::vector<float> logits) {
        vocab_len_ = static_cast<std::int64_t>(logits.size());
        logits_.insert(logits_.end(), logits.begin(), logits.end());
        LogitRow row;
        row.slot = static_cast<SlotId>(slots_.size());
        slots_.emplace_back(RequestState(setup, vocab_len_));
        rows_.push_back(row);
    }
    const messages::LogprobOptions& options_of(const LogitRow& row) const {
        return slots_[static_cast<std::size_t>(raw(row.slot))]->logprobs();
    }

    std::int64_t vocab_len_ = 0;
    std::vector<float> logits_{};
    std::vector<LogitRow> rows_{};
    RequestSlots slots_{};
    std::vector<TokenId> ids_{};
    std::size_t num_sampled_ = 0, num_top_ = 0, num_ids_ = 0, num_scored_ = 0, num_scored_top_ = 0;
};

}  // namespace pitstop::tp_worker
