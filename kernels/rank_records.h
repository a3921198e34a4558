// Holds what ranks that hold a part of the vocabulary each tell each other of a row of logits, so
// that none needs the row: 20 bytes, from which every rank makes the same draw and the same sums.
//
//   of a part   log_sum  log(sum of exp(x)) over its ids (logprobs.h); -inf where that is nothing
//               score    of its draw (sampling.h); -inf where it draws nothing
//               logit    of its draw, or of the given id; -inf where that is not in this part
//               id       of its draw; kNotFiniteDraw where it has logits that are not finite
//   of the row  id       of the draw with the highest score, the lower one on a tie (better());
//                        kDrewNothing where that score is -inf, kScoreNotFinite where it is
//                        +inf. 0 of a row that is not drawn. kNotFiniteDraw where a part says so
//               logit    of that draw; of a given id the highest, which is that of the rank that
//                        has it
//               max      the highest log_sum, rounded to fp32
//               sum      of exp(log_sum - max), in double and in rank order: the same bits on
//                        every rank, whatever the batch (P6)
//
//   logits   [R, V_rank]  fp32, as of the draws and the sums; ids vocab_begin .. vocab_begin +
//                         V_rank, of which there may be none
//   records  [R] of a rank; all ranks' follow one another, rank_records_bytes(R) apart
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
    // They are a double's: the record has no gaps.
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

// Returns what one rank's take, a multiple of 16 (exchange.h).
[[nodiscard]] constexpr std::int64_t rank_records_bytes(std::int64_t num_rows) {
    constexpr std::int64_t kPack = 16;
    return (num_rows * std::int64_t{sizeof(RankRecord)} + kPack - 1) / kPack * kPack;
}

enum class RankRowKind : std::int32_t { kDrawn, kGiven };

// Says what is asked of a row: the same on every rank but for the pointers.
struct RankRow {
    const Choice* choice = nullptr;  // this rank's draw; null where it has none
    TokenId* token = nullptr;        // written as ids[r] is, where it is not null
    TokenId given{};                 // kGiven: whose logit is wanted
    RankRowKind kind = RankRowKind::kDrawn;
};

struct MakeRankRecordsArgs {
    View2<const float> logits{};  // [R, V_rank]
    std::int64_t vocab_begin = 0;
    const RankRow* rows = nullptr;                // [R]
    const std::int32_t* num_nonfinite = nullptr;  // [R] for the part; not read where V_rank is 0
    const SoftmaxStats* stats = nullptr;          // [R] likewise
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
    TokenId* ids = nullptr;         // [R], and so the next: written
    LogitPick* picks = nullptr;     // row r, and the id that was drawn or given
    float* logits = nullptr;
    SoftmaxStats* stats = nullptr;
    Stream stream{};
};

void check(const MergeRankRecordsArgs& args);
void merge_rank_records_ref(const MergeRankRecordsArgs& args);
void merge_rank_records_cuda(const MergeRankRecordsArgs& args);

}  // namespace pitstop::kernels
