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
//
// A call waits for the device twice: for the choices, then for the logprobs that depend on them.
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "messages/steps.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/transfers.h"
#include "tp_worker/model/step_batch.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop {

class Sampler {
  public:
    struct Args {
        const Device& device;
        Transfers* transfers = nullptr;  // with room for transfer_bytes()
        std::int64_t rows_max = 0;
        std::int64_t vocab_len = 0;
    };
    // What make() takes of the device's memory.
    [[nodiscard]] static std::int64_t bytes(
        const Ops& ops, std::int64_t rows_max, std::int64_t vocab_len
    );
    [[nodiscard]] static std::int64_t transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len);
    static Result<Sampler> make(const Args& args);

    // Row i of `logits` [n, V], in the device's memory, belongs to rows[i]. Writes the result's
    // entries that the rows name; changes no request.
    void run(
        View2<float> logits,
        std::span<const LogitRow> rows,
        const RequestSlots& slots,
        StepResult* result
    );

  private:
    Sampler(const Args& args, Arena memory);

    void draw_all(View2<float> logits, const RequestSlots& slots);
    void draw(View2<float> logits, std::span<const std::size_t> rows, const RequestSlots& slots);
    void draw_edited(View2<float> logits, const RequestSlots& slots);
    void edit(
        View2<float> logits,
        std::span<const std::size_t> rows,
        View2<float> edited,
        const RequestSlots& slots
    );
    void start_raw(View2<float> logits, const RequestSlots& slots);
    void pick_raw(View2<float> logits, const RequestSlots& slots);
    void start_edited(View2<float> logits, const RequestSlots& slots);
    void report_raw(const RequestSlots& slots, StepResult* result);
    void report_edited(StepResult* result);
    void make_room(std::int64_t transfer_bytes);
    [[nodiscard]] bool is_raw(const LogitRow& row, const RequestSlots& slots) const;
    [[nodiscard]] bool is_finite(std::size_t index) const { return num_nonfinite_[index] == 0; }

    // A sampled row whose request wants logprobs of what it was drawn from.
    struct EditedReport {
        std::size_t row = 0;
        SoftmaxRow softmax{};
        SoftmaxStats stats{};
        std::vector<float> logits{};  // of the choice, then of the ids asked for
        std::vector<TokenId> top_ids{};
        std::vector<float> top_logits{};
    };

    const Ops* ops_;
    Stream stream_;
    Transfers* transfers_;
    std::int64_t vocab_len_;
    Arena memory_;
    View2<float> edited_{};  // [rows_max, V]
    Workspace sample_workspace_{};
    Workspace stats_workspace_{};

    // Of the current call, by row.
    std::span<const LogitRow> rows_{};
    std::vector<std::int32_t> num_nonfinite_{};
    std::vector<SoftmaxStats> stats_{};  // of the raw logits
    std::vector<Choice> choices_{};
    std::vector<std::size_t> top_starts_{};  // in top_ids_ and top_logits_; of raw rows

    std::vector<std::size_t> edited_rows_{};  // row k of edited_ is a copy of this row
    std::vector<Choice> edited_choices_{};
    std::vector<EditedReport> edited_reports_{};

    // Scratch, kept to avoid allocation.
    std::vector<std::size_t> run_{};
    std::vector<SoftmaxRow> softmax_rows_{};
    std::vector<SampleRow> draws_{};
    std::vector<LogitPick> picks_{};
    std::vector<float> picked_{};
    std::vector<TokenId> top_ids_{};
    std::vector<float> top_logits_{};
    std::vector<std::int32_t> row_index_{};
    std::vector<PenaltyRow> penalties_{};
    std::vector<std::int32_t> count_starts_{};
    std::vector<TokenCount> counts_{};
    std::vector<std::int32_t> bias_starts_{};
    std::vector<LogitBias> biases_{};
};

}  // namespace pitstop
