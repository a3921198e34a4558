// The tables of the levels. cpu/table.cpp, compiled once per level, defines each. The digest's
// loops are in a separate library (digest/).
#pragma once

#include "kernels/ops.h"

namespace pitstop::kernels {

namespace scalar {
extern const Ops kOps;
void digest(const DigestArgs& args);
}  // namespace scalar
namespace avx2 {
extern const Ops kOps;
void digest(const DigestArgs& args);
}  // namespace avx2
namespace avx512 {
extern const Ops kOps;
void digest(const DigestArgs& args);
}  // namespace avx512
namespace avx512bf16 {
extern const Ops kOps;
void digest(const DigestArgs& args);
}  // namespace avx512bf16

// Ops that copy bytes or read a few entries have one version for all levels (<family>.cpp).
void gather_rows_cpu(const GatherRowsArgs& args);
void count_nonfinite_cpu(const CountNonfiniteArgs& args);
[[nodiscard]] std::int64_t no_workspace_bytes();
void penalties_cpu(const PenaltyArgs& args);
void route_cpu(const RouteArgs& args);
void follow_routes_cpu(const FollowRoutesArgs& args);

}  // namespace pitstop::kernels
