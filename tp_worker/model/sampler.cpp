#include "tp_worker/model/sampler.h"

#include <algorithm>
#include <limits>

namespace pitstop {
namespace {

constexpr std::int64_t kAlignment = 256;                         // a GPU's workspaces
constexpr float kAll = -std::numeric_limits<float>::infinity();  // a kept_min that keeps every id

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

const RequestState& request_of(const LogitRow& row, const RequestSlots& slots) {
    return *slots[static_cast<std::size_t>(raw(row.slot))];
}

// Rows with edits share a call up to so many bytes of counts and biases.
constexpr std::int64_t kEditBytes = std::int64_t{4} << 20;

std::int64_t edit_bytes(const RequestState& request, std::int64_t output_index) {
    return static_cast<std::int64_t>(
        request.counts().size_bytes() + request.biases(output_index).size_bytes()
    );
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

}  // namespace

std::int64_t Sampler::bytes(const Ops& ops, std::int64_t rows_max, std::int64_t vocab_len) {
    return aligned(rows_max * vocab_len * 4) +
           aligned(ops.sample_workspace_bytes(rows_max, vocab_len)) +
           aligned(ops.softmax_stats_workspace_bytes(rows_max, vocab_len));
}

// More than any one call of make_room() asks for.
std::int64_t Sampler::transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len) {
    constexpr auto kPicksMax = std::int64_t{1 + kLogprobIdsMax};
    constexpr auto kBiasesMax = std::int64_t{kLogitBiasMax + kStopTokensMax + kStopsMax};
    constexpr std::int64_t kPickBytes = sizeof(LogitPick) + sizeof(float);
    constexpr std::int64_t kTopBytes = sizeof(TokenId) + sizeof(float);
    constexpr std::int64_t kRowBytes = 1024;  // of a row's settings, choice and sums, rounded up
    const std::int64_t edit_bytes_max = kEditBytes + vocab_len * std::int64_t{sizeof(TokenCount)} +
                                        kBiasesMax * std::int64_t{sizeof(LogitBias)};
    return edit_bytes_max +
           (rows_max + 4) * (kPicksMax * kPickBytes + kTopLogprobsMax * kTopBytes + kRowBytes);
}

Result<Sampler> Sampler::make(const Args& args) {
    const std::int64_t num_bytes = bytes(args.device.ops(), args.rows_max, args.vocab_len);
    ASSIGN_OR_RETURN(Arena memory, args.device.reserve("sampler", num_bytes));
    RETURN_IF_ERROR(memory.commit());
    return Sampler(args, std::move(memory));
}

Sampler::Sampler(const Args& args, Arena memory)
    : ops_(&args.device.ops()),
      stream_(args.device.stream()),
      transfers_(args.transfers),
      vocab_len_(args.vocab_len),
      memory_(std::move(memory)) {
    std::byte* at = memory_.data();
    edited_ = view2(reinterpret_cast<float*>(at), args.rows_max, vocab_len_);
    at += aligned(args.rows_max * vocab_len_ * 4);
    sample_workspace_ = {at, ops_->sample_workspace_bytes(args.rows_max, vocab_len_)};
    at += aligned(sample_workspace_.bytes);
    stats_workspace_ = {at, ops_->softmax_stats_workspace_bytes(args.rows_max, vocab_len_)};
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
    draw_all(logits, slots);
    start_raw(logits, slots);
    transfers_->wait();
    for (std::size_t k = 0; k < edited_rows_.size(); ++k) {
        choices_[edited_rows_[k]] = edited_choices_[k];
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (!is_finite(i)) ++result->num_nonfinite;
        if (rows[i].kind == LogitRow::Kind::kScore) continue;
        result->sampled.values[rows[i].entry] = is_finite(i) ? choices_[i].id : TokenId{-1};
    }
    pick_raw(logits, slots);
    start_edited(logits, slots);
    transfers_->wait();
    report_raw(slots, result);
    report_edited(result);
}

bool Sampler::is_raw(const LogitRow& row, const RequestSlots& slots) const {
    return row.kind == LogitRow::Kind::kScore ||
           request_of(row, slots).logprobs().mode == LogprobsMode::kRaw;
}

// Rounded up by two alignments an array: what a call asks for is never a close fit.
void Sampler::make_room(std::int64_t transfer_bytes) {
    constexpr std::int64_t kArraysMax = 8;
    if (transfers_->bytes_left() < transfer_bytes + kArraysMax * Transfers::kAlignment) {
        transfers_->wait();
    }
}

// Draws from rows without edits where they are, in runs of neighbours; then from the edited rows,
// in their copy.
void Sampler::draw_all(View2<float> logits, const RequestSlots& slots) {
    num_nonfinite_.assign(rows_.size(), 0);
    choices_.assign(rows_.size(), Choice{});
    edited_rows_.clear();
    constexpr std::int64_t kRowBytes =
        sizeof(std::int32_t) + sizeof(SampleRow) + sizeof(Choice) + 2 * Transfers::kAlignment;
    make_room(logits.rows * kRowBytes);
    ops_->count_nonfinite({
        .logits = logits,
        .counts = transfers_->out(std::span(num_nonfinite_)),
        .stream = stream_,
    });
    run_.clear();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const bool is_sample = rows_[i].kind == LogitRow::Kind::kSample;
        const bool is_edited =
            is_sample && request_of(rows_[i], slots).has_edits(rows_[i].output_index);
        if (is_edited) edited_rows_.push_back(i);
        if (is_sample && !is_edited) {
            run_.push_back(i);
            continue;
        }
        draw(logits, run_, slots);
        run_.clear();
    }
    draw(logits, run_, slots);
    draw_edited(logits, slots);
}

// Neighbouring rows of `logits`.
void Sampler::draw(
    View2<float> logits, std::span<const std::size_t> rows, const RequestSlots& slots
) {
    if (rows.empty()) return;
    draws_.clear();
    for (const std::size_t i : rows) {
        draws_.push_back(request_of(rows_[i], slots).draw(rows_[i].output_index));
    }
    const auto num = static_cast<std::int64_t>(rows.size());
    ops_->sample({
        .logits = pitstop::rows(logits, static_cast<std::int64_t>(rows.front()), num),
        .rows = transfers_->in(draws_),
        .choices = transfers_->out(std::span(choices_).subspan(rows.front(), rows.size())),
        .workspace = sample_workspace_,
        .stream = stream_,
    });
}

// As many rows a call as their counts and biases fit.
void Sampler::draw_edited(View2<float> logits, const RequestSlots& slots) {
    edited_choices_.assign(edited_rows_.size(), Choice{});
    for (std::size_t begin = 0; begin < edited_rows_.size();) {
        std::int64_t bytes = 0;
        std::size_t end = begin;
        while (end < edited_rows_.size()) {
            const LogitRow& row = rows_[edited_rows_[end]];
            const std::int64_t more = edit_bytes(request_of(row, slots), row.output_index);
            if (end > begin && bytes + more > kEditBytes) break;
            bytes += more;
            ++end;
        }
        const std::size_t num = end - begin;
        const std::span rows = std::span(edited_rows_).subspan(begin, num);
        constexpr std::size_t kRowBytes =
            sizeof(PenaltyRow) + 3 * sizeof(std::int32_t) + sizeof(SampleRow) + sizeof(Choice);
        make_room(bytes + static_cast<std::int64_t>((num + 2) * kRowBytes));
        const View2<float> edited = pitstop::rows(
            edited_, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(num)
        );
        edit(logits, rows, edited, slots);
        draws_.clear();
        for (const std::size_t i : rows) {
            draws_.push_back(request_of(rows_[i], slots).draw(rows_[i].output_index));
        }
        ops_->sample({
            .logits = edited,
            .rows = transfers_->in(draws_),
            .choices = transfers_->out(std::span(edited_choices_).subspan(begin, num)),
            .workspace = sample_workspace_,
            .stream = stream_,
        });
        begin = end;
    }
}

// The rows' logits after penalties and bias.
void Sampler::edit(
    View2<float> logits,
    std::span<const std::size_t> rows,
    View2<float> edited,
    const RequestSlots& slots
) {
    row_index_.clear();
    penalties_.clear();
    counts_.clear();
    biases_.clear();
    count_starts_.assign(1, 0);
    bias_starts_.assign(1, 0);
    for (const std::size_t i : rows) {
        const RequestState& request = request_of(rows_[i], slots);
        row_index_.push_back(static_cast<std::int32_t>(i));
        penalties_.push_back(request.penalty());
        counts_.insert(counts_.end(), request.counts().begin(), request.counts().end());
        count_starts_.push_back(static_cast<std::int32_t>(counts_.size()));
        const std::span biases = request.biases(rows_[i].output_index);
        biases_.insert(biases_.end(), biases.begin(), biases.end());
        bias_starts_.push_back(static_cast<std::int32_t>(biases_.size()));
    }
    ops_->gather_rows({
        .x = logits,
        .row_index = transfers_->in(row_index_),
        .y = edited,
        .stream = stream_,
    });
    ops_->penalties({
        .logits = edited,
        .rows = transfers_->in(penalties_),
        .count_starts = transfers_->in(count_starts_),
        .counts = transfers_->in(counts_),
        .bias_starts = transfers_->in(bias_starts_),
        .biases = transfers_->in(biases_),
        .stream = stream_,
    });
}

// What needs no choice: the sums of every row, and the top ids of raw rows, in runs of neighbours
// that want as many.
void Sampler::start_raw(View2<float> logits, const RequestSlots& slots) {
    const auto top_of = [&](std::size_t i) -> std::size_t {
        if (!is_raw(rows_[i], slots)) return 0;
        return static_cast<std::size_t>(
            std::min(request_of(rows_[i], slots).logprobs().top, vocab_len_)
        );
    };
    top_starts_.assign(1, 0);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        top_starts_.push_back(top_starts_.back() + top_of(i));
    }
    top_ids_.resize(top_starts_.back());
    top_logits_.resize(top_starts_.back());
    softmax_rows_.assign(rows_.size(), SoftmaxRow{});
    stats_.assign(rows_.size(), SoftmaxStats{});
    constexpr std::size_t kRowBytes =
        sizeof(SoftmaxRow) + sizeof(SoftmaxStats) + 2 * Transfers::kAlignment;
    constexpr std::size_t kTopBytes = sizeof(TokenId) + sizeof(float);
    make_room(static_cast<std::int64_t>(rows_.size() * kRowBytes + top_starts_.back() * kTopBytes));
    ops_->softmax_stats({
        .logits = logits,
        .rows = transfers_->in(softmax_rows_),
        .stats = transfers_->out(std::span(stats_)),
        .workspace = stats_workspace_,
        .stream = stream_,
    });
    for (std::size_t begin = 0; begin < rows_.size();) {
        const std::size_t top = top_of(begin);
        std::size_t end = begin + 1;
        while (end < rows_.size() && top_of(end) == top) ++end;
        const auto num = static_cast<std::int64_t>(end - begin);
        if (top > 0) {
            const std::size_t first = top_starts_[begin];
            const std::size_t size = top_starts_[end] - first;
            const auto cols = static_cast<std::int64_t>(top);
            ops_->top_logits({
                .logits = pitstop::rows(logits, static_cast<std::int64_t>(begin), num),
                .ids = view2(transfers_->out(std::span(top_ids_).subspan(first, size)), num, cols),
                .values =
                    view2(transfers_->out(std::span(top_logits_).subspan(first, size)), num, cols),
                .stream = stream_,
            });
        }
        begin = end;
    }
}

// The logits of the sampled or given token and of the ids asked for.
void Sampler::pick_raw(View2<float> logits, const RequestSlots& slots) {
    picks_.clear();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (!is_finite(i) || !is_raw(rows_[i], slots)) continue;
        const auto at = static_cast<std::int32_t>(i);
        const bool is_score = rows_[i].kind == LogitRow::Kind::kScore;
        picks_.push_back({at, is_score ? rows_[i].target : choices_[i].id});
        for (const TokenId id : request_of(rows_[i], slots).logprobs().ids)
            picks_.push_back({at, id});
    }
    picked_.assign(picks_.size(), 0.f);
    if (picks_.empty()) return;
    make_room(static_cast<std::int64_t>(picks_.size() * (sizeof(LogitPick) + sizeof(float))));
    ops_->pick_logits({
        .logits = logits,
        .picks = transfers_->in(picks_),
        .num_picks = static_cast<std::int64_t>(picks_.size()),
        .values = transfers_->out(std::span(picked_)),
        .stream = stream_,
    });
}

void Sampler::start_edited(View2<float> logits, const RequestSlots& slots) {
    std::size_t num = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (is_finite(i) && !is_raw(rows_[i], slots)) ++num;
    }
    edited_reports_.resize(num);  // first: out() arrays stay where they are
    num = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (!is_finite(i) || is_raw(rows_[i], slots)) continue;
        const RequestState& request = request_of(rows_[i], slots);
        EditedReport& report = edited_reports_[num++];
        report.row = i;
        const SampleRow draw = request.draw(rows_[i].output_index);
        report.softmax = {.temperature = draw.temperature > 0.f ? draw.temperature : 1.f};
        if (request.logprobs().mode == LogprobsMode::kTruncated) {
            report.softmax.kept_min = choices_[i].kept_min;
        }
        const std::vector<TokenId>& ids = request.logprobs().ids;
        const auto top = static_cast<std::size_t>(std::min(request.logprobs().top, vocab_len_));
        picks_.assign(1, {0, choices_[i].id});
        for (const TokenId id : ids) picks_.push_back({0, id});
        report.logits.resize(picks_.size());
        report.top_ids.resize(top);
        report.top_logits.resize(top);
        make_room(static_cast<std::int64_t>(
            picks_.size() * (sizeof(LogitPick) + sizeof(float)) +
            top * (sizeof(TokenId) + sizeof(float)) + sizeof(SoftmaxRow) + sizeof(SoftmaxStats)
        ));
        const auto edited = std::find(edited_rows_.begin(), edited_rows_.end(), i);
        const View2<float> source = edited == edited_rows_.end()
                                        ? pitstop::rows(logits, static_cast<std::int64_t>(i), 1)
                                        : pitstop::rows(edited_, edited - edited_rows_.begin(), 1);
        ops_->softmax_stats({
            .logits = source,
            .rows = transfers_->in(std::span<const SoftmaxRow>(&report.softmax, 1)),
            .stats = transfers_->out(std::span(&report.stats, 1)),
            .workspace = stats_workspace_,
            .stream = stream_,
        });
        ops_->pick_logits({
            .logits = source,
            .picks = transfers_->in(picks_),
            .num_picks = static_cast<std::int64_t>(picks_.size()),
            .values = transfers_->out(std::span(report.logits)),
            .stream = stream_,
        });
        if (top == 0) continue;
        const auto cols = static_cast<std::int64_t>(top);
        ops_->top_logits({
            .logits = source,
            .ids = view2(transfers_->out(std::span(report.top_ids)), 1, cols),
            .values = view2(transfers_->out(std::span(report.top_logits)), 1, cols),
            .stream = stream_,
        });
    }
}

void Sampler::report_raw(const RequestSlots& slots, StepResult* result) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (!is_finite(i) || !is_raw(rows_[i], slots)) continue;
        const RowOutputs out = outputs_of(rows_[i], result);
        *out.logprob = logprob(picked_[at++], kAll, stats_[i]);
        const std::size_t num_ids = request_of(rows_[i], slots).logprobs().ids.size();
        for (std::size_t k = 0; k < num_ids; ++k) {
            out.ids_logprobs[k] = logprob(picked_[at++], kAll, stats_[i]);
        }
        for (std::size_t first = top_starts_[i], k = 0; first + k < top_starts_[i + 1]; ++k) {
            out.top_ids[k] = top_ids_[first + k];
            out.top_logprobs[k] = logprob(top_logits_[first + k], kAll, stats_[i]);
        }
    }
}

void Sampler::report_edited(StepResult* result) {
    for (const EditedReport& report : edited_reports_) {
        const float inverse = 1.f / report.softmax.temperature;  // as the op scales
        const auto logprob_of = [&](float logit) {
            return logprob(logit * inverse, report.softmax.kept_min, report.stats);
        };
        const RowOutputs out = outputs_of(rows_[report.row], result);
        *out.logprob = logprob_of(report.logits.front());
        for (std::size_t k = 1; k < report.logits.size(); ++k) {
            out.ids_logprobs[k - 1] = logprob_of(report.logits[k]);
        }
        for (std::size_t k = 0; k < report.top_ids.size(); ++k) {
            out.top_ids[k] = report.top_ids[k];
            out.top_logprobs[k] = logprob_of(report.top_logits[k]);
        }
    }
}

}  // namespace pitstop
