#include "tp_worker/sampler.h"

#include "kernels/thread_pool.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace pitstop {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr float kAll = -std::numeric_limits<float>::infinity();  // a kept_min that keeps every id

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

const RequestState& request_of(const LogitRow& row, const RequestSlots& slots) {
    return *slots[static_cast<std::size_t>(raw(row.slot))];
}

// Where the numbers of a row go.
struct RowOutputs {
    float* logprob;
    TokenId* top_ids;
    float* top_logprobs;
    float* ids_logprobs;
};

RowOutputs outputs_of(const LogitRow& row, StepResult* result) {
    if (row.kind == LogitRow::Kind::kScore) {
        StepScores& scores = result->scores;
        return {
            scores.logprobs.values.data() + row.entry,
            scores.top_ids.values.data() + row.top_begin,
            scores.top_logprobs.values.data() + row.top_begin,
            scores.ids_logprobs.values.data() + row.ids_begin};
    }
    return {
        result->logprobs.values.data() + row.entry,
        result->top_ids.values.data() + row.top_begin,
        result->top_logprobs.values.data() + row.top_begin,
        result->ids_logprobs.values.data() + row.ids_begin};
}

// Infinities and NaNs have all exponent bits set. In blocks, so that the compiler uses vectors.
bool is_all_finite(std::span<const float> x) {
    constexpr std::size_t kBlock = 16;
    constexpr std::uint32_t kExponent = 0x7f800000u;
    std::uint32_t bad = 0;
    std::size_t i = 0;
    for (; i + kBlock <= x.size(); i += kBlock) {
        for (std::size_t k = 0; k < kBlock; ++k) {
            bad |= (std::bit_cast<std::uint32_t>(x[i + k]) & kExponent) == kExponent ? 1u : 0u;
        }
    }
    for (; i < x.size(); ++i) {
        bad |= (std::bit_cast<std::uint32_t>(x[i]) & kExponent) == kExponent ? 1u : 0u;
    }
    return bad == 0;
}

}  // namespace

Result<Sampler> Sampler::make(
    const Ops* ops, Stream stream, std::int64_t rows_max, std::int64_t vocab_len
) {
    const std::int64_t bytes = aligned(rows_max * vocab_len * 4) +
                               aligned(ops->sample_workspace_bytes(rows_max, vocab_len)) +
                               aligned(ops->softmax_stats_workspace_bytes(rows_max, vocab_len));
    ASSIGN_OR_RETURN(Arena memory, Arena::reserve("sampler", bytes));
    RETURN_IF_ERROR(memory.commit());
    return Sampler(ops, stream, rows_max, vocab_len, std::move(memory));
}

Sampler::Sampler(
    const Ops* ops, Stream stream, std::int64_t rows_max, std::int64_t vocab_len, Arena memory
)
    : ops_(ops), stream_(stream), vocab_len_(vocab_len), memory_(std::move(memory)) {
    std::byte* at = memory_.data();
    edited_ = view2(reinterpret_cast<float*>(at), rows_max, vocab_len);
    at += aligned(rows_max * vocab_len * 4);
    sample_workspace_ = {at, ops->sample_workspace_bytes(rows_max, vocab_len)};
    at += aligned(sample_workspace_.bytes);
    stats_workspace_ = {at, ops->softmax_stats_workspace_bytes(rows_max, vocab_len)};
}

void Sampler::run(
    View2<float> logits,
    std::span<const LogitRow> rows,
    const RequestSlots& slots,
    StepResult* result
) {
    CHECK(logits.rows == static_cast<std::int64_t>(rows.size()) && logits.rows <= edited_.rows);
    CHECK(logits.cols == vocab_len_);
    rows_ = rows;
    find_nonfinite(logits);
    draw_all(logits, slots);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (is_finite_[i] == 0) ++result->num_nonfinite;
        if (rows[i].kind == LogitRow::Kind::kScore) continue;
        result->sampled.values[rows[i].entry] = is_finite_[i] != 0 ? choices_[i].id : TokenId{-1};
    }
    report_raw(logits, slots, result);
    report_top(logits, slots, result);
}

bool Sampler::is_raw(const LogitRow& row, const RequestSlots& slots) const {
    return row.kind == LogitRow::Kind::kScore ||
           request_of(row, slots).logprobs().mode == LogprobsMode::kRaw;
}

void Sampler::find_nonfinite(View2<const float> logits) {
    is_finite_.assign(rows_.size(), 0);
    auto look = [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
        for (std::int64_t i = begin; i < end; ++i) {
            is_finite_[static_cast<std::size_t>(i)] = is_all_finite(row(logits, i)) ? 1 : 0;
        }
    };
    parallel_for(stream_, logits.rows, /*grain=*/1, look);
}

// Draws from rows without edits where they are, in runs of neighbours; then from the edited rows,
// in their copy.
void Sampler::draw_all(View2<float> logits, const RequestSlots& slots) {
    choices_.assign(rows_.size(), Choice{});
    edited_rows_.clear();
    std::size_t run_begin = 0;
    for (std::size_t i = 0; i <= rows_.size(); ++i) {
        const bool is_sample = i < rows_.size() && rows_[i].kind == LogitRow::Kind::kSample;
        const bool is_edited =
            is_sample && request_of(rows_[i], slots).has_edits(rows_[i].output_index);
        if (is_edited) edited_rows_.push_back(i);
        if (is_sample && !is_edited) continue;
        draw_plain(logits, run_begin, i, slots);
        run_begin = i + 1;
    }
    if (edited_rows_.empty()) return;
    const View2<float> edited = edit(logits, edited_rows_, slots);
    std::vector<Choice> choices(edited_rows_.size());
    draws_.clear();
    for (const std::size_t i : edited_rows_) {
        draws_.push_back(request_of(rows_[i], slots).draw(rows_[i].output_index));
    }
    ops_->sample({
        .logits = edited,
        .rows = draws_.data(),
        .choices = choices.data(),
        .workspace = sample_workspace_,
        .stream = stream_,
    });
    for (std::size_t k = 0; k < choices.size(); ++k) choices_[edited_rows_[k]] = choices[k];
}

void Sampler::draw_plain(
    View2<float> logits, std::size_t begin, std::size_t end, const RequestSlots& slots
) {
    if (begin >= end) return;
    draws_.clear();
    for (std::size_t i = begin; i < end; ++i) {
        draws_.push_back(request_of(rows_[i], slots).draw(rows_[i].output_index));
    }
    ops_->sample({
        .logits = pitstop::rows(
            logits, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin)
        ),
        .rows = draws_.data(),
        .choices = choices_.data() + begin,
        .workspace = sample_workspace_,
        .stream = stream_,
    });
}

// The rows' logits after penalties and bias, in the order of `indices`.
View2<float> Sampler::edit(
    View2<float> logits, std::span<const std::size_t> indices, const RequestSlots& slots
) {
    const View2<float> edited =
        pitstop::rows(edited_, 0, static_cast<std::int64_t>(indices.size()));
    penalties_.clear();
    counts_.clear();
    biases_.clear();
    count_starts_.assign(1, 0);
    bias_starts_.assign(1, 0);
    for (std::size_t k = 0; k < indices.size(); ++k) {
        const LogitRow& logit_row = rows_[indices[k]];
        const RequestState& request = request_of(logit_row, slots);
        const std::span from = row(logits, static_cast<std::int64_t>(indices[k]));
        std::copy(from.begin(), from.end(), row(edited, static_cast<std::int64_t>(k)).begin());
        penalties_.push_back(request.penalty());
        counts_.insert(counts_.end(), request.counts().begin(), request.counts().end());
        count_starts_.push_back(static_cast<std::int32_t>(counts_.size()));
        const std::span biases = request.biases(logit_row.output_index);
        biases_.insert(biases_.end(), biases.begin(), biases.end());
        bias_starts_.push_back(static_cast<std::int32_t>(biases_.size()));
    }
    ops_->penalties({
        .logits = edited,
        .rows = penalties_.data(),
        .count_starts = count_starts_.data(),
        .counts = counts_.data(),
        .bias_starts = bias_starts_.data(),
        .biases = biases_.data(),
        .stream = stream_,
    });
    return edited;
}

// Logprobs of the sampled or given token and of the ids asked for.
void Sampler::report_raw(View2<float> logits, const RequestSlots& slots, StepResult* result) {
    softmax_rows_.assign(rows_.size(), SoftmaxRow{});
    stats_.assign(rows_.size(), SoftmaxStats{});
    ops_->softmax_stats({
        .logits = logits,
        .rows = softmax_rows_.data(),
        .stats = stats_.data(),
        .workspace = stats_workspace_,
        .stream = stream_,
    });
    picks_.clear();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (is_finite_[i] == 0 || !is_raw(rows_[i], slots)) continue;
        const auto at = static_cast<std::int32_t>(i);
        const bool is_score = rows_[i].kind == LogitRow::Kind::kScore;
        picks_.push_back({at, is_score ? rows_[i].target : choices_[i].id});
        for (const TokenId id : request_of(rows_[i], slots).logprobs().ids)
            picks_.push_back({at, id});
    }
    picked_.assign(picks_.size(), 0.f);
    ops_->pick_logits({
        .logits = logits,
        .picks = picks_.data(),
        .num_picks = static_cast<std::int64_t>(picks_.size()),
        .values = picked_.data(),
        .stream = stream_,
    });
    std::size_t at = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (is_finite_[i] == 0) continue;
        if (!is_raw(rows_[i], slots)) {
            const auto edited = std::find(edited_rows_.begin(), edited_rows_.end(), i);
            const View2<float> source =
                edited == edited_rows_.end()
                    ? pitstop::rows(logits, static_cast<std::int64_t>(i), 1)
                    : pitstop::rows(edited_, edited - edited_rows_.begin(), 1);
            report_edited(i, source, slots, result);
            continue;
        }
        const RowOutputs out = outputs_of(rows_[i], result);
        *out.logprob = logprob(picked_[at++], kAll, stats_[i]);
        const std::size_t num_ids = request_of(rows_[i], slots).logprobs().ids.size();
        for (std::size_t k = 0; k < num_ids; ++k) {
            out.ids_logprobs[k] = logprob(picked_[at++], kAll, stats_[i]);
        }
    }
}

// The top ids of raw rows, in runs of neighbours that want as many.
void Sampler::report_top(View2<float> logits, const RequestSlots& slots, StepResult* result) {
    const auto top_of = [&](std::size_t i) -> std::int64_t {
        if (i >= rows_.size() || is_finite_[i] == 0 || !is_raw(rows_[i], slots)) return 0;
        return std::min(request_of(rows_[i], slots).logprobs().top, vocab_len_);
    };
    for (std::size_t begin = 0; begin < rows_.size();) {
        const std::int64_t top = top_of(begin);
        std::size_t end = begin + 1;
        while (end < rows_.size() && top_of(end) == top) ++end;
        const auto num = static_cast<std::int64_t>(end - begin);
        if (top > 0) {
            top_ids_.resize(static_cast<std::size_t>(num * top));
            top_logits_.resize(static_cast<std::size_t>(num * top));
            ops_->top_logits({
                .logits = pitstop::rows(logits, static_cast<std::int64_t>(begin), num),
                .ids = view2(top_ids_.data(), num, top),
                .values = view2(top_logits_.data(), num, top),
                .stream = stream_,
            });
            for (std::size_t i = begin; i < end; ++i) {
                const RowOutputs out = outputs_of(rows_[i], result);
                const std::size_t first = (i - begin) * static_cast<std::size_t>(top);
                for (std::size_t k = 0; k < static_cast<std::size_t>(top); ++k) {
                    out.top_ids[k] = top_ids_[first + k];
                    out.top_logprobs[k] = logprob(top_logits_[first + k], kAll, stats_[i]);
                }
            }
        }
        begin = end;
    }
}

// A sampled row whose request wants logprobs of what it was drawn from; `source` is that one row.
void Sampler::report_edited(
    std::size_t index, View2<float> source, const RequestSlots& slots, StepResult* result
) {
    const RequestState& request = request_of(rows_[index], slots);
    const SampleRow draw = request.draw(rows_[index].output_index);
    SoftmaxRow softmax{.temperature = draw.temperature > 0.f ? draw.temperature : 1.f};
    if (request.logprobs().mode == LogprobsMode::kTruncated) {
        softmax.kept_min = choices_[index].kept_min;
    }
    SoftmaxStats stats;
    ops_->softmax_stats({
        .logits = source,
        .rows = &softmax,
        .stats = &stats,
        .workspace = stats_workspace_,
        .stream = stream_,
    });
    const float inverse = 1.f / softmax.temperature;  // as the op scales
    const auto logprob_of = [&](float logit) {
        return logprob(logit * inverse, softmax.kept_min, stats);
    };
    const RowOutputs out = outputs_of(rows_[index], result);
    const std::span logits = row(source, 0);
    const auto logit = [&](TokenId id) { return logits[static_cast<std::size_t>(raw(id))]; };
    *out.logprob = logprob_of(logit(choices_[index].id));
    const std::vector<TokenId>& ids = request.logprobs().ids;
    for (std::size_t k = 0; k < ids.size(); ++k) out.ids_logprobs[k] = logprob_of(logit(ids[k]));

    const std::int64_t top = std::min(request.logprobs().top, vocab_len_);
    if (top == 0) return;
    top_logits_.resize(static_cast<std::size_t>(top));
    ops_->top_logits({
        .logits = source,
        .ids = view2(out.top_ids, 1, top),
        .values = view2(top_logits_.data(), 1, top),
        .stream = stream_,
    });
    for (std::size_t k = 0; k < top_logits_.size(); ++k) {
        out.top_logprobs[k] = logprob_of(top_logits_[k]);
    }
}

}  // namespace pitstop
