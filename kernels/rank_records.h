// A record: 20 bytes about one rank's part of a row of logits, which ranks exchange instead of the
// logits. From all ranks' records, every rank computes the same draw and the same sums.
//
//   of a part   log_sum  log(sum of exp(x)) over its ids (logprobs.h); -inf if there are none
//               score    of its draw (sampling.h); -inf if it draws nothing
//               logit    of its draw, or of the given id; -inf if that is not in this part
//               id       of its draw; kNotFiniteDraw if it has logits that are not finite
//   of the row  id       of the draw with the highest score, the lower one on a tie (better());
//                        kDrewNothing if that score is -inf, kScoreNotFinite if it is +inf. 0 for a
//                        row without a draw. kNotFiniteDraw if any part has it
//               logit    of that draw; of a given id the highest, which comes from the rank that
//                        has the id
//               max      the highest log_sum, rounded to fp32
//               sum      of exp(log_sum - max), in double and in rank order: the same bits on
//                        every rank, whatever the batch (P6)
//
//   logits   [R, V_rank]  fp32, as for the draws and the sums; ids vocab_begin .. vocab_begin +
//                         V_rank, possibly none
//   records  [R] of a rank; the ranks' records follow each other, rank_records_bytes(R) apart
#pragma once

#include "base/ids.h"
#include "kernels/draws.h"
#include "kernels/logprobs.h"
#include "kernels/sampling.h"
#include "kernels/tensor.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace pitstop::kernels {

struct RankRecord {
    // The words of a double, so that the record has no gaps.
    std::array<std::uint32_t, 2> log_sum_words{};
    float score = -std::numeric_limits<float>::infinity();
    float logit = -std::numeric_limits<float>::infinity();
    TokenId id{};

    [[nodiscard]] constexpr double log_sum() const { return std::bit_cast<double>(log_sum_words); }
    constexpr void set_log_sum(double value) {
        log_sum_words = std::bit_cast<std::array<std::uint32_t, 2>>(value);
    }
};
static_assert(sizeof(RankRecord) == 20);

// Returns the bytes of one rank's records, a multiple of 16 (exchange.h).
[[nodiscard]] constexpr std::int64_t rank_records_bytes(std::int64_t num_rows) {
    constexpr std::int64_t kPack = 16;
    return (num_rows * std::int64_t{sizeof(RankRecord)} + kPack - 1) / kPack * kPack;
}

enum class RankRowKind : std::int32_t { kDrawn, kGiven };

// The requested results of a row: the same on every rank except for the pointers.
struct RankRow {
    const Choice* choice = nullptr;  // this rank's draw; null: no draw
    TokenId* token = nullptr;        // if not null, gets the value of ids[r]
    TokenId given{};                 // kGiven: the id whose logit is wanted
    RankRowKind kind = RankRowKind::kDrawn;
};

struct MakeRankRecordsArgs {
    View2<const float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    const RankRow* rows = nullptr;                // [R]
    const std::int32_t* num_nonfinite = nullptr;  // [R] of the part; not read if V_rank is 0
    const SoftmaxStats* stats = nullptr;          // [R] of the part; not read if V_rank is 0
    RankRecord* records = nullptr;                // [R], written
    Stream stream{};
};

void check(const MakeRankRecordsArgs& args);
void make_rank_records_ref(const MakeRankRecordsArgs& args);
void make_rank_records_cuda(const MakeRankRecordsArgs& args);

struct MergeRankRecordsArgs {
    const std::byte* all = nullptr;  // [num_ranks], 16-byte aligned
    int num_ranks = 1;
    const RankRow* rows = nullptr;  // [R]
    std::int64_t num_rows = 0;      // R
    TokenId* ids = nullptr;         // [R]; an output, as are picks, logits and stats
    LogitPick* picks = nullptr;     // row r, and the drawn or given id
    float* logits = nullptr;
    SoftmaxStats* stats = nullptr;
    Stream stream{};
};

void check(const MergeRankRecordsArgs& args);
void merge_rank_records_ref(const MergeRankRecordsArgs& args);
void merge_rank_records_cuda(const MergeRankRecordsArgs& args);

}  // namespace pitstop::kernels
