#include "tp_worker/model/rank_call.h"

namespace pitstop::tp_worker {

std::int64_t Sampler::RankCall::count_bytes(std::int64_t num_rows) {
    constexpr std::int64_t kPack = 16;
    return (num_rows * std::int64_t{sizeof(std::int32_t)} + kPack - 1) / kPack * kPack;
}

Sampler::RankCall::RankCall(
    Sampler& sampler,
    const RowLogits& logits,
    std::span<const SampledRow> rows,
    std::uint32_t first_position
)
    : sampler_(sampler),
      logits_(logits),
      part_(sampler.part_of(logits)),
      rows_(rows),
      first_position_(first_position),
      stats_(rows.size()),
      picked_(rows.size()) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const SampledRow& row = rows[i];
        // Rank 0 draws whole rows (Sampler::Call), so this part's draw of such a row is unused. Its
        // default settings do not truncate.
        const bool draws = row.is_sample && !row.is_whole;
        draws_of_rows_.push_back(draws ? row.draw : kernels::SampleRow{});
        const float temperature = row.is_raw ? 0.f : row.draw.temperature;
        softmax_.push_back({.temperature = temperature > 0.f ? temperature : 1.f});
        has_draws_ |= draws;
        has_ranks_ |= row.is_ranked && !row.is_whole;
        if (!row.is_whole) continue;
        if (num_whole_ == 0) whole_begin_ = i;
        num_whole_ = i + 1 - whole_begin_;
    }
    if (!has_ranks_) return;
    const std::int64_t num_bytes = sampler.sizes_.num_ranks * count_bytes(num_rows());
    num_before_.resize(static_cast<std::size_t>(num_bytes) / sizeof(std::int32_t));
}

void Sampler::RankCall::place_inputs(std::span<const kernels::DrawnRow> drawn) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const SampledRow& row = rows_[i];
        kernels::RankRow one{.given = row.place->target};
        one.kind = row.is_sample ? kernels::RankRowKind::kDrawn : kernels::RankRowKind::kGiven;
        if (row.is_sample && row.is_whole) one.choice = drawn[i].choice;
        if (row.is_sample && !row.is_whole && has_ids()) one.choice = sampler_.part_choices_ + i;
        if (row.draws_last() && sampler_.sizes_.num_slots > 0)
            one.token = sampler_.sampled_ + raw(row.place->slot);
        rank_rows_.push_back(one);
    }
    StandingArrays& standing = sampler_.standing_;
    const std::int64_t rows_max = sampler_.sizes_.rows_max;
    device_draws_ = standing.place(std::span(draws_of_rows_), rows_max);
    device_softmax_ = standing.place(std::span(softmax_), rows_max);
    device_rank_rows_ = standing.place(std::span(rank_rows_), rows_max);
}

void Sampler::RankCall::place_outputs() {
    Transfers& transfers = *sampler_.transfers_;
    device_stats_ = transfers.out(std::span(stats_));
    device_picked_ = transfers.out(std::span(picked_));
    device_num_before_ = transfers.out(std::span(num_before_));
}

Result<> Sampler::RankCall::start() {
    if (has_ids() && has_draws_) {
        sampler_.ops_->sample({
            .logits = part_,
            .vocab_begin = sampler_.vocab_begin_,
            .rows = device_draws_,
            .first_position = first_position_,
            .may_truncate = false,
            .choices = sampler_.part_choices_,
            .num_nonfinite = sampler_.num_nonfinite_,
            .workspace = sampler_.sample_workspace_,
            .arrivals = sampler_.arrivals_,
            .stream = sampler_.stream_,
        });
    } else if (has_ids()) {
        sampler_.ops_->count_nonfinite({
            .logits = part_,
            .counts = sampler_.num_nonfinite_,
            .stream = sampler_.stream_,
        });
    }
    if (has_ids()) {
        sampler_.ops_->softmax_stats({
            .logits = part_,
            .rows = device_softmax_,
            .stats = sampler_.part_stats_,
            .workspace = sampler_.stats_workspace_,
            .stream = sampler_.stream_,
        });
    }
    return gather_whole_rows();
}

Result<> Sampler::RankCall::gather_whole_rows() {
    if (num_whole_ == 0) return Ok{};
    const auto begin = static_cast<std::int64_t>(whole_begin_);
    const auto num = static_cast<std::int64_t>(num_whole_);
    const View2<float> whole =
        sampler_.is_root() ? pitstop::rows(logits_.whole, begin, num) : View2<float>{};
    return sampler_.communicator_->gather_columns(pitstop::rows(logits_.part, begin, num), whole);
}

Result<> Sampler::RankCall::merge(TokenId* ids) {
    const int num_ranks = sampler_.sizes_.num_ranks;
    sampler_.ops_->make_rank_records({
        .logits = part_,
        .vocab_begin = sampler_.vocab_begin_,
        .rows = device_rank_rows_,
        .num_nonfinite = sampler_.num_nonfinite_,
        .stats = sampler_.part_stats_,
        .records = sampler_.records_,
        .stream = sampler_.stream_,
    });
    const auto num_bytes = static_cast<std::size_t>(kernels::rank_records_bytes(num_rows()));
    RETURN_IF_ERROR(sampler_.communicator_->all_gather_records(
        {reinterpret_cast<const std::byte*>(sampler_.records_), num_bytes},
        {sampler_.all_records_, num_bytes * static_cast<std::size_t>(num_ranks)}
    ));
    sampler_.ops_->merge_rank_records({
        .all = sampler_.all_records_,
        .num_ranks = num_ranks,
        .rows = device_rank_rows_,
        .num_rows = num_rows(),
        .ids = ids,
        .picks = sampler_.picks_,
        .logits = device_picked_,
        .stats = device_stats_,
        .stream = sampler_.stream_,
    });
    return count_ranks();
}

Result<> Sampler::RankCall::count_ranks() {
    if (!has_ranks_) return Ok{};
    if (has_ids()) {
        sampler_.ops_->count_before({
            .logits = part_,
            .vocab_begin = sampler_.vocab_begin_,
            .picks = sampler_.picks_,
            .values = device_picked_,
            .num_picks = num_rows(),
            .counts = sampler_.counts_,
            .stream = sampler_.stream_,
        });
    }
    const auto num_bytes = static_cast<std::size_t>(count_bytes(num_rows()));
    return sampler_.communicator_->all_gather_records(
        {reinterpret_cast<const std::byte*>(sampler_.counts_), num_bytes},
        std::as_writable_bytes(std::span(device_num_before_, num_before_.size()))
    );
}

void Sampler::RankCall::finish(std::size_t i, messages::StepResult* result) const {
    const RowOutputs out = outputs_of(*rows_[i].place, result);
    const float inverse = 1.f / softmax_[i].temperature;  // as the op scales
    *out.logprob = kernels::logprob(picked_[i] * inverse, softmax_[i].kept_min, stats_[i]);
    if (!rows_[i].is_ranked) return;
    const std::size_t of_rank =
        num_before_.size() / static_cast<std::size_t>(sampler_.sizes_.num_ranks);
    std::int32_t rank = 1;
    for (std::size_t at = i; at < num_before_.size(); at += of_rank) rank += num_before_[at];
    *out.rank = rank;
}

}  // namespace pitstop::tp_worker
