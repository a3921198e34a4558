#include "tp_worker/model/sampler.h"

#include "tp_worker/model/rank_call.h"
#include "tp_worker/model/sampler_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 256;  // of a GPU's workspaces

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Sampler::Layout Sampler::lay_out(const kernels::Ops& ops, const Sizes& sizes) {
    const std::int64_t rows_max = sizes.rows_max;
    Layout layout;
    const auto take = [&](std::int64_t bytes) {
        const std::int64_t begin = layout.bytes;
        layout.bytes += aligned(bytes);
        return begin;
    };
    constexpr std::int64_t kChoiceBytes = sizeof(kernels::Choice);
    layout.edited = take(raw(sizes.rank) == 0 ? rows_max * sizes.vocab_len * 4 : 0);
    layout.model_choices = take(rows_max * kChoiceBytes);
    layout.edited_choices = take(rows_max * kChoiceBytes);
    layout.num_nonfinite = take(rows_max * 4);
    layout.sampled = take(sizes.num_slots * std::int64_t{sizeof(TokenId)});
    layout.arrivals = take(kernels::SampleArgs::kArrivals * 4);
    layout.sample_workspace = take(ops.sample_workspace_bytes(rows_max, sizes.vocab_len));
    layout.stats_workspace = take(ops.softmax_stats_workspace_bytes(rows_max, sizes.vocab_len));
    if (sizes.num_ranks > 1) {
        layout.part_choices = take(rows_max * kChoiceBytes);
        layout.part_stats = take(rows_max * std::int64_t{sizeof(kernels::SoftmaxStats)});
        layout.noted_ids = take(rows_max * std::int64_t{sizeof(TokenId)});
        layout.picks = take(rows_max * std::int64_t{sizeof(kernels::LogitPick)});
        layout.counts = take(RankCall::count_bytes(rows_max));
        layout.records = take(kernels::rank_records_bytes(rows_max));
        layout.all_records = take(sizes.num_ranks * kernels::rank_records_bytes(rows_max));
    }
    layout.standing = take(standing_bytes(sizes));
    return layout;
}

// Counts the bytes that Call::place() and RankCall::place_inputs() place.
std::int64_t Sampler::standing_bytes(const Sizes& sizes) {
    const auto of = [&](std::size_t element_bytes, std::int64_t per_row) {
        return StandingArrays::bytes_of(
            sizes.rows_max * per_row * static_cast<std::int64_t>(element_bytes)
        );
    };
    const std::int64_t view = of(sizeof(kernels::SampleRow), 1) +
                              of(sizeof(kernels::SoftmaxRow), 1) +
                              of(sizeof(kernels::LogitPick), kStandingPicks);
    const std::int64_t ranks = of(sizeof(kernels::SampleRow), 1) +
                               of(sizeof(kernels::SoftmaxRow), 1) + of(sizeof(kernels::RankRow), 1);
    return 2 * view + of(sizeof(kernels::DrawnRow), 1) + (sizes.num_ranks > 1 ? ranks : 0);
}

std::int64_t Sampler::bytes(const kernels::Ops& ops, const Sizes& sizes) {
    return lay_out(ops, sizes).bytes;
}

// Returns more than any one call of make_room() asks for.
std::int64_t Sampler::transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len) {
    constexpr std::int64_t kPickBytes = sizeof(kernels::LogitPick) + sizeof(float);
    constexpr std::int64_t kRowBytes = 1024;  // a row's settings, choice and sums, rounded up
    // The most for one row: a count, a bias and a bit of its mask for each token.
    constexpr std::int64_t kEditBytes =
        std::int64_t{sizeof(kernels::TokenCount)} + std::int64_t{sizeof(kernels::LogitBias)} + 1;
    return kShareBytes + vocab_len * kEditBytes +
           (rows_max + 4) * (kPicksMax * kPickBytes + kRowBytes);
}

Result<Sampler> Sampler::make(const Args& args) {
    CHECK(args.sizes.num_ranks == 1 || args.communicator != nullptr);
    const Layout layout = lay_out(args.device.ops(), args.sizes);
    const std::int64_t num_bytes = args.device.is_cuda() ? layout.bytes : layout.standing;
    ASSIGN_OR_RETURN(Arena memory, args.device.reserve("sampler", num_bytes));
    RETURN_IF_ERROR(memory.commit());
    return Sampler(args, std::move(memory));
}

Sampler::Sampler(const Args& args, Arena memory)
    : ops_(&args.device.ops()),
      stream_(args.device.stream()),
      transfers_(args.transfers),
      communicator_(args.communicator),
      sizes_(args.sizes),
      vocab_len_(args.sizes.vocab_len),
      vocab_begin_(args.vocab_begin),
      memory_(std::move(memory)) {
    const std::int64_t rows_max = sizes_.rows_max;
    const Layout layout = lay_out(*ops_, sizes_);
    std::byte* const begin = memory_.data();
    edited_ = view2(
        reinterpret_cast<float*>(begin + layout.edited), is_root() ? rows_max : 0, vocab_len_
    );
    model_choices_ = reinterpret_cast<kernels::Choice*>(begin + layout.model_choices);
    edited_choices_ = reinterpret_cast<kernels::Choice*>(begin + layout.edited_choices);
    num_nonfinite_ = reinterpret_cast<std::int32_t*>(begin + layout.num_nonfinite);
    sampled_ = reinterpret_cast<TokenId*>(begin + layout.sampled);
    arrivals_ = reinterpret_cast<std::uint32_t*>(begin + layout.arrivals);
    if (args.device.is_cuda()) {
        args.device.clear(arrivals_, kernels::SampleArgs::kArrivals * 4);
        const std::int64_t num_standing = standing_bytes(sizes_);
        args.device.clear(begin + layout.standing, num_standing);
        standing_ = StandingArrays(begin + layout.standing, num_standing);
    }
    sample_workspace_ = {
        begin + layout.sample_workspace, ops_->sample_workspace_bytes(rows_max, vocab_len_)};
    stats_workspace_ = {
        begin + layout.stats_workspace, ops_->softmax_stats_workspace_bytes(rows_max, vocab_len_)};
    if (is_split()) set_up_ranks(layout, args.device);
}

void Sampler::set_up_ranks(const Layout& layout, const Device& device) {
    std::byte* const begin = memory_.data();
    part_choices_ = reinterpret_cast<kernels::Choice*>(begin + layout.part_choices);
    part_stats_ = reinterpret_cast<kernels::SoftmaxStats*>(begin + layout.part_stats);
    noted_ids_ = reinterpret_cast<TokenId*>(begin + layout.noted_ids);
    picks_ = reinterpret_cast<kernels::LogitPick*>(begin + layout.picks);
    counts_ = reinterpret_cast<std::int32_t*>(begin + layout.counts);
    records_ = reinterpret_cast<kernels::RankRecord*>(begin + layout.records);
    all_records_ = begin + layout.all_records;
    // A rank without ids never writes its counts, but sends them, with the padding after them. So
    // both are set to zero here.
    const std::int64_t num_bytes = layout.all_records - layout.counts;
    device.clear(counts_, num_bytes);
}

View2<float> Sampler::part_of(const RowLogits& logits) const {
    View2<float> part = logits.part;
    part.cols = std::clamp<std::int64_t>(vocab_len_ - vocab_begin_, 0, part.cols);
    return part;
}

std::unique_ptr<Sampler::Call> Sampler::prepare(
    const RowLogits& logits, std::span<const LogitRow> rows, const RequestSlots& slots
) {
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    CHECK(logits.part.rows == num_rows && num_rows <= sizes_.rows_max);
    CHECK(!is_root() || (logits.whole.rows == num_rows && logits.whole.cols == vocab_len_));
    return std::make_unique<Call>(*this, logits, rows, slots);
}

Result<> Sampler::enqueue(Call& call) { return call.enqueue(); }

Result<std::vector<TokenId>> Sampler::run(
    const RowLogits& logits,
    std::span<const LogitRow> rows,
    const RequestSlots& slots,
    messages::StepResult* result
) {
    const std::unique_ptr<Call> call = prepare(logits, rows, slots);
    transfers_->send();
    RETURN_IF_ERROR(call->enqueue());
    transfers_->end_turn();
    transfers_->finish_turn();
    call->finish(result);
    const std::span<const TokenId> ids = call->ids();
    return std::vector(ids.begin(), ids.end());
}

// Waits for earlier transfers, unless the buffer has room for this many bytes plus the padding of
// all arrays of a call.
void Sampler::make_room(std::int64_t transfer_bytes) {
    constexpr std::int64_t kArraysMax = 8;
    if (transfers_->bytes_left() < transfer_bytes + kArraysMax * Transfers::kAlignment) {
        transfers_->wait();
    }
}

}  // namespace pitstop::tp_worker
