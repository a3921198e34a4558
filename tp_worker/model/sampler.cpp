#include "tp_worker/model/sampler.h"

#include "tp_worker/model/sampler_call.h"

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 256;  // a GPU's workspaces

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Sampler::Layout Sampler::lay_out(
    const kernels::Ops& ops, std::int64_t rows_max, std::int64_t vocab_len, std::int64_t num_slots
) {
    Layout layout;
    const auto take = [&](std::int64_t bytes) {
        const std::int64_t begin = layout.bytes;
        layout.bytes += aligned(bytes);
        return begin;
    };
    constexpr std::int64_t kChoiceBytes = sizeof(kernels::Choice);
    layout.edited = take(rows_max * vocab_len * 4);
    layout.model_choices = take(rows_max * kChoiceBytes);
    layout.edited_choices = take(rows_max * kChoiceBytes);
    layout.num_nonfinite = take(rows_max * 4);
    layout.sampled = take(num_slots * std::int64_t{sizeof(TokenId)});
    layout.arrivals = take(kernels::SampleArgs::kArrivals * 4);
    layout.sample_workspace = take(ops.sample_workspace_bytes(rows_max, vocab_len));
    layout.stats_workspace = take(ops.softmax_stats_workspace_bytes(rows_max, vocab_len));
    return layout;
}

std::int64_t Sampler::bytes(
    const kernels::Ops& ops, std::int64_t rows_max, std::int64_t vocab_len, std::int64_t num_slots
) {
    return lay_out(ops, rows_max, vocab_len, num_slots).bytes;
}

// More than any one call of make_room() asks for.
std::int64_t Sampler::transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len) {
    constexpr auto kPicksMax = std::int64_t{1 + messages::kLogprobIdsMax};
    constexpr std::int64_t kPickBytes = sizeof(kernels::LogitPick) + sizeof(float);
    constexpr std::int64_t kRowBytes = 1024;  // of a row's settings, choice and sums, rounded up
    // Of one row that is more than its share: a count and a bias for each token.
    constexpr std::int64_t kEditBytes =
        std::int64_t{sizeof(kernels::TokenCount)} + std::int64_t{sizeof(kernels::LogitBias)};
    return kShareBytes + vocab_len * kEditBytes +
           (rows_max + 4) * (kPicksMax * kPickBytes + kRowBytes);
}

Result<Sampler> Sampler::make(const Args& args) {
    const std::int64_t num_bytes =
        bytes(args.device.ops(), args.rows_max, args.vocab_len, args.num_slots);
    ASSIGN_OR_RETURN(Arena memory, args.device.reserve("sampler", num_bytes));
    RETURN_IF_ERROR(memory.commit());
    return Sampler(args, std::move(memory));
}

Sampler::Sampler(const Args& args, Arena memory)
    : ops_(&args.device.ops()),
      stream_(args.device.stream()),
      transfers_(args.transfers),
      vocab_len_(args.vocab_len),
      memory_(std::move(memory)),
      num_slots_(args.num_slots) {
    const Layout layout = lay_out(*ops_, args.rows_max, vocab_len_, num_slots_);
    std::byte* const begin = memory_.data();
    edited_ = view2(reinterpret_cast<float*>(begin + layout.edited), args.rows_max, vocab_len_);
    model_choices_ = reinterpret_cast<kernels::Choice*>(begin + layout.model_choices);
    edited_choices_ = reinterpret_cast<kernels::Choice*>(begin + layout.edited_choices);
    num_nonfinite_ = reinterpret_cast<std::int32_t*>(begin + layout.num_nonfinite);
    sampled_ = reinterpret_cast<TokenId*>(begin + layout.sampled);
    arrivals_ = reinterpret_cast<std::uint32_t*>(begin + layout.arrivals);
    if (args.device.is_cuda())
        kernels::fill_device(arrivals_, 0, kernels::SampleArgs::kArrivals * 4, stream_);
    sample_workspace_ = {
        begin + layout.sample_workspace, ops_->sample_workspace_bytes(args.rows_max, vocab_len_)};
    stats_workspace_ = {
        begin + layout.stats_workspace,
        ops_->softmax_stats_workspace_bytes(args.rows_max, vocab_len_)};
}

std::unique_ptr<Sampler::Call> Sampler::prepare(
    View2<float> logits, std::span<const LogitRow> rows, const RequestSlots& slots
) {
    CHECK(logits.rows == static_cast<std::int64_t>(rows.size()) && logits.rows <= edited_.rows);
    CHECK(logits.cols == vocab_len_);
    return std::make_unique<Call>(*this, logits, rows, slots);
}

void Sampler::enqueue(Call& call) { call.enqueue(); }

void Sampler::run(
    View2<float> logits,
    std::span<const LogitRow> rows,
    const RequestSlots& slots,
    messages::StepResult* result
) {
    const std::unique_ptr<Call> call = prepare(logits, rows, slots);
    transfers_->send();
    call->enqueue();
    transfers_->end_turn();
    transfers_->finish_turn();
    call->finish(result);
}

// Rounded up by two alignments an array: what a call asks for is never a close fit.
void Sampler::make_room(std::int64_t transfer_bytes) {
    constexpr std::int64_t kArraysMax = 8;
    if (transfers_->bytes_left() < transfer_bytes + kArraysMax * Transfers::kAlignment) {
        transfers_->wait();
    }
}

}  // namespace pitstop::tp_worker
