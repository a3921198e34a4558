#include "kernels/rank_records.h"

#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;

__device__ float negative_infinity() { return __uint_as_float(0xff800000u); }

// grid [ceil(R / kThreads)], block [kThreads]; a thread owns a row. Latency-bound: about a hundred
// bytes per row.
__global__ void __launch_bounds__(kThreads) make_rank_records_kernel(
    const float* __restrict__ logits,  // [R, V_rank]
    std::int64_t stride,
    std::int64_t num_ids,  // V_rank
    std::int64_t vocab_begin,
    const RankRow* __restrict__ rows,                // [R]
    const std::int32_t* __restrict__ num_nonfinite,  // [R]
    const SoftmaxStats* __restrict__ stats,          // [R]
    std::int64_t num_rows,
    RankRecord* __restrict__ records  // [R]
) {
    const std::int64_t r = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (r >= num_rows) return;
    const RankRow row = rows[r];
    RankRecord record;
    TokenId wanted = row.given;
    if (row.choice != nullptr) {
        const Choice choice = *row.choice;
        record.score = choice.score;
        record.id = wanted = choice.id;
    }
    double log_sum = double{negative_infinity()};
    if (num_ids > 0) {
        const std::int64_t index = std::int64_t{raw(wanted)} - vocab_begin;
        const bool is_wanted = row.choice != nullptr || row.kind == RankRowKind::kGiven;
        if (is_wanted && index >= 0 && index < num_ids) record.logit = logits[r * stride + index];
        const SoftmaxStats sums = stats[r];
        if (sums.sum != 0.0) log_sum = double{sums.max} + log(sums.sum);
        if (num_nonfinite[r] != 0) record.id = kNotFiniteDraw;
    }
    record.set_log_sum(log_sum);
    records[r] = record;
}

// grid [ceil(R / kThreads)], block [kThreads]; a thread owns a row. Latency-bound: 20 bytes per row
// and rank.
__global__ void __launch_bounds__(kThreads) merge_rank_records_kernel(
    const std::byte* __restrict__ all,  // [num_ranks], `bytes` each
    std::int64_t bytes,
    int num_ranks,
    const RankRow* __restrict__ rows,  // [R]
    std::int64_t num_rows,
    TokenId* ids,        // [R], as the next members
    LogitPick* picks,    //
    float* logits,       //
    SoftmaxStats* stats  //
) {
    const std::int64_t r = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (r >= num_rows) return;
    const auto record_of = [=](int rank) {
        return reinterpret_cast<const RankRecord*>(all + rank * bytes)[r];
    };
    const RankRow row = rows[r];
    const bool is_drawn = row.kind == RankRowKind::kDrawn;
    bool is_finite = true;
    double highest = double{negative_infinity()};
    RankRecord best = record_of(0);
    for (int rank = 0; rank < num_ranks; ++rank) {
        const RankRecord record = record_of(rank);
        if (record.id == kNotFiniteDraw) is_finite = false;
        if (record.log_sum() > highest) highest = record.log_sum();
        const bool is_better =
            is_drawn ? record.score > best.score ||
                           (record.score == best.score && raw(record.id) < raw(best.id))
                     : record.logit > best.logit;
        if (is_better) best = record;
    }
    SoftmaxStats merged{.max = static_cast<float>(highest)};
    for (int rank = 0; rank < num_ranks; ++rank) {  // in rank order
        const double log_sum = record_of(rank).log_sum();
        if (log_sum != double{negative_infinity()}) merged.sum += exp(log_sum - double{merged.max});
    }
    TokenId id{0};
    if (is_drawn) id = drawn_id({.id = best.id, .score = best.score});
    if (!is_finite) id = kNotFiniteDraw;
    if (row.token != nullptr) *row.token = id;
    ids[r] = id;
    picks[r] = {static_cast<std::int32_t>(r), is_drawn ? best.id : row.given};
    logits[r] = best.logit;
    stats[r] = merged;
}

Launch shape_of(std::int64_t num_rows, Stream stream) {
    return {
        .grid = dim3(narrow<unsigned>(ceil_div(num_rows, kThreads))),
        .block = dim3(kThreads),
        .stream = stream};
}

}  // namespace

void make_rank_records_cuda(const MakeRankRecordsArgs& args) {
    check(args);
    launch<make_rank_records_kernel>(
        shape_of(args.logits.rows, args.stream),
        args.logits.data,
        args.logits.stride,
        args.logits.cols,
        args.vocab_begin,
        args.rows,
        args.num_nonfinite,
        args.stats,
        args.logits.rows,
        args.records
    );
}

void merge_rank_records_cuda(const MergeRankRecordsArgs& args) {
    check(args);
    launch<merge_rank_records_kernel>(
        shape_of(args.num_rows, args.stream),
        args.all,
        rank_records_bytes(args.num_rows),
        args.num_ranks,
        args.rows,
        args.num_rows,
        args.ids,
        args.picks,
        args.logits,
        args.stats
    );
}

}  // namespace pitstop::kernels
