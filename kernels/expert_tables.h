// The adapters of rows that are sorted by expert (expert_rows.h), on a GPU: where low_rank_rows.h
// finds the pair of each row's adapter and expert.
//   to[r] = tables[token_of[r]] + e * pairs_per_expert   for the rows r of expert e
//         = null   if the token has no adapter, and for rows from begins[E] on
// So `pair` of a part (low_rank_rows.h) is the index of the first expert's pair.
#pragma once

#include "kernels/low_rank_rows.h"

#include <cstdint>

namespace pitstop::kernels {

struct ExpertTablesArgs {
    const LowRankPair* const* tables = nullptr;  // [T] by token; null: no adapter
    const std::int32_t* begins = nullptr;        // [E + 1]
    const std::int32_t* token_of = nullptr;      // [R]
    std::int32_t num_experts = 0;                // E
    std::int64_t num_rows = 0;                   // R
    std::int64_t pairs_per_expert = 0;           // from an expert's pair to the next one's
    const LowRankPair** to = nullptr;            // [R]
    Stream stream{};
};

void check(const ExpertTablesArgs& args);
void expert_tables_cuda(const ExpertTablesArgs& args);

}  // namespace pitstop::kernels
