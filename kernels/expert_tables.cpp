#include "kernels/expert_tables.h"

namespace pitstop::kernels {

void check(const ExpertTablesArgs& args) {
    CHECK(args.tables != nullptr && args.begins != nullptr && args.token_of != nullptr);
    CHECK(args.to != nullptr);
    CHECK(args.num_experts >= 1 && args.num_rows >= 0 && args.pairs_per_expert >= 1);
}

}  // namespace pitstop::kernels
