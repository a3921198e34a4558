#include "kernels/rank_records.h"

#include "kernels/reference.h"

#include <cmath>

namespace pitstop::kernels {
void check(const MakeRankRecordsArgs& args) {
    const std::int64_t R = args.logits.rows;
    CHECK(R >= 0 && args.logits.cols >= 0 && args.vocab_begin >= 0);
    CHECK(args.logits.cols == 0 || R == 0 || args.logits.data != nullptr);
    CHECK(args.logits.cols == 0 || R <= 1 || args.logits.stride >= args.logits.cols);
    CHECK(R == 0 || (args.rows != nullptr && args.records != nullptr));
    CHECK(
        args.logits.cols == 0 || R == 0 || (args.num_nonfinite != nullptr && args.stats != nullptr)
    );
}

void make_rank_records_ref(const MakeRankRecordsArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        const RankRow& row = args.rows[r];
        RankRecord record;
        TokenId wanted = row.given;
        if (row.choice != nullptr) {
            record.score = row.choice->score;
            record.id = wanted = row.choice->id;
        }
        double log_sum = double{kNegInf};
        if (args.logits.cols > 0) {
            const std::int64_t index = std::int64_t{raw(wanted)} - args.vocab_begin;
            const bool is_wanted = row.choice != nullptr || row.kind == RankRowKind::kGiven;
            if (is_wanted && index >= 0 && index < args.logits.cols)
                record.logit = args.logits.data[r * args.logits.stride + index];
            const SoftmaxStats& stats = args.stats[r];
            if (stats.sum != 0.0) log_sum = double{stats.max} + std::log(stats.sum);
            if (args.num_nonfinite[r] != 0) record.id = kNotFiniteDraw;
        }
        record.set_log_sum(log_sum);
        args.records[r] = record;
    }
}

void check(const MergeRankRecordsArgs& args) {
    CHECK(args.num_ranks >= 1 && args.num_rows >= 0);
    CHECK(
        args.num_rows == 0 ||
        (args.all != nullptr && args.rows != nullptr && args.ids != nullptr &&
         args.picks != nullptr && args.logits != nullptr && args.stats != nullptr)
    );
}

void merge_rank_records_ref(const MergeRankRecordsArgs& args) {
    check(args);
    const std::int64_t bytes = rank_records_bytes(args.num_rows);
    for (std::int64_t r = 0; r < args.num_rows; ++r) {
        const auto record_of = [&](int rank) -> const RankRecord& {
            return reinterpret_cast<const RankRecord*>(args.all + rank * bytes)[r];
        };
        const RankRow& row = args.rows[r];
        const bool is_drawn = row.kind == RankRowKind::kDrawn;
        bool is_finite = true;
        double highest = double{kNegInf};
        Choice best{.id = record_of(0).id, .score = record_of(0).score};
        float logit = record_of(0).logit;
        for (int rank = 0; rank < args.num_ranks; ++rank) {
            const RankRecord& record = record_of(rank);
            if (record.id == kNotFiniteDraw) is_finite = false;
            if (record.log_sum() > highest) highest = record.log_sum();
            const Choice own{.id = record.id, .score = record.score};
            const Choice winner = better(best, own);
            const bool is_better = winner.id != best.id || winner.score != best.score;
            if (is_drawn ? is_better : record.logit > logit) logit = record.logit;
            best = winner;
        }
        SoftmaxStats stats{.max = static_cast<float>(highest)};
        for (int rank = 0; rank < args.num_ranks; ++rank) {
            const double log_sum = record_of(rank).log_sum();
            if (log_sum != double{kNegInf}) stats.sum += std::exp(log_sum - double{stats.max});
        }
        TokenId id{0};
        if (is_drawn) id = drawn_id(best);
        if (!is_finite) id = kNotFiniteDraw;
        if (row.token != nullptr) *row.token = id;
        args.ids[r] = id;
        args.picks[r] = {static_cast<std::int32_t>(r), is_drawn ? best.id : row.given};
        args.logits[r] = logit;
        args.stats[r] = stats;
    }
}

}  // namespace pitstop::kernels
