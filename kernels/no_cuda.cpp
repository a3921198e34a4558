// In a build without CUDA the tables of ops are null. No caller reaches the other ops, because none
// can get memory on a device.
#include "kernels/exchange.h"
#include "kernels/expert_tables.h"
#include "kernels/linear_tuning.h"
#include "kernels/low_rank_rows.h"
#include "kernels/ops.h"
#include "kernels/step_rows.h"
#include "kernels/word_runs.h"

namespace pitstop::kernels {

const Ops* cuda_ops() { return nullptr; }
const Ops* cuda_deterministic_ops() { return nullptr; }
int load_linear_choices(const std::string&) { return 0; }
Result<> save_linear_choices(const std::string&) {
    return Error{
        ErrorCode::kUnsupported, "this build has no CUDA, so no product has choices to save"};
}
std::int64_t exchange_bytes(std::int64_t) { return 0; }
std::int64_t exchange_header_bytes() { return 0; }
void all_reduce_cuda(const AllReduceArgs&) { CHECK(false); }
void gather_columns_cuda(const GatherColumnsArgs&) { CHECK(false); }
void all_gather_cuda(const AllGatherArgs&) { CHECK(false); }
void expert_tables_cuda(const ExpertTablesArgs&) { CHECK(false); }
void low_rank_rows_cuda(const LowRankRowsArgs&) { CHECK(false); }
void step_rows_cuda(const StepRowsArgs&) { CHECK(false); }
void word_runs_cuda(const WordRunsArgs&) { CHECK(false); }

}  // namespace pitstop::kernels
