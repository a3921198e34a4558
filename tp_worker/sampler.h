// From logits to tokens and logprobs, on rank 0.
//
// Of each row of logits: a draw (kSample) or the score of a given token (kScore), the request's top
// ids and the ids it asked for. The draw is from the logits after penalties and bias; a logprob of
// an output token comes from the distribution that the request's mode names
// (messages/generation.h), of a prompt token always from the raw one. A row with a logit that is
// not finite is not drawn from: its token is -1, its logprobs are 0, and it is counted.
//
// Which rows share a call decides no bit of any of them (P6).
//
// Owns:    the edited copy of rows with penalties or bias, and the ops' scratch memory.
// Bounded: rows_max rows a call.
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "messages/steps.h"
#include "tp_worker/arena.h"
#include "tp_worker/step_batch.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop {

class Sampler {
  public:
    static Result<Sampler> make(
        const Ops* ops, Stream stream, std::int64_t rows_max, std::int64_t vocab_len
    );

    // Row i of `logits` [n, V] belongs to rows[i]. Writes the result's entries that the rows name;
    // changes no request.
    void run(
        View2<float> logits,
        std::span<const LogitRow> rows,
        const RequestSlots& slots,
        StepResult* result
    );

  private:
    Sampler(
        const Ops* ops, Stream stream, std::int64_t rows_max, std::int64_t vocab_len, Arena memory
    );

    void find_nonfinite(View2<const float> logits);
    void report_raw(View2<float> logits, const RequestSlots& slots, StepResult* result);
    void report_top(View2<float> logits, const RequestSlots& slots, StepResult* result);
    void draw_all(View2<float> logits, const RequestSlots& slots);
    void draw_plain(
        View2<float> logits, std::size_t begin, std::size_t end, const RequestSlots& slots
    );
    View2<float> edit(
        View2<float> logits, std::span<const std::size_t> indices, const RequestSlots& slots
    );
    void report_edited(
        std::size_t index, View2<float> source, const RequestSlots& slots, StepResult* result
    );
    [[nodiscard]] bool is_raw(const LogitRow& row, const RequestSlots& slots) const;

    const Ops* ops_;
    Stream stream_;
    std::int64_t vocab_len_;
    Arena memory_;
    View2<float> edited_{};  // [rows_max, V]
    Workspace sample_workspace_{};
    Workspace stats_workspace_{};

    // Of the current call, by row.
    std::span<const LogitRow> rows_{};
    std::vector<std::uint8_t> is_finite_{};
    std::vector<SoftmaxRow> softmax_rows_{};
    std::vector<SoftmaxStats> stats_{};  // of the raw logits
    std::vector<SampleRow> draws_{};
    std::vector<Choice> choices_{};

    // Scratch, kept to avoid allocation.
    std::vector<std::size_t> edited_rows_{};
    std::vector<LogitPick> picks_{};
    std::vector<float> picked_{};
    std::vector<TokenId> top_ids_{};
    std::vector<float> top_logits_{};
    std::vector<PenaltyRow> penalties_{};
    std::vector<std::int32_t> count_starts_{};
    std::vector<TokenCount> counts_{};
    std::vector<std::int32_t> bias_starts_{};
    std::vector<LogitBias> biases_{};
};

}  // namespace pitstop
