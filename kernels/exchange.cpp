#include "kernels/exchange.h"

#include "base/result.h"

namespace pitstop::kernels {
namespace {

std::string describe(std::uint64_t tag) {
    const std::uint64_t num = tag & ((std::uint64_t{1} << kExchangeNumBits) - 1);
    const auto op = static_cast<ExchangeOp>(tag >> kExchangeNumBits);
    if (op == ExchangeOp::kAllGather) return fmt::format("all_gather of {} words", num);
    const bool is_sum = op == ExchangeOp::kAllReduce;
    return fmt::format("{} of {} floats", is_sum ? "all_reduce" : "gather", num);
}

}  // namespace

Error error_of(const ExchangeFailure& failure, std::uint64_t limit_ns) {
    if (failure.kind == static_cast<std::uint64_t>(ExchangeFailure::Kind::kOutOfStep)) {
        return make_error(
            ErrorCode::kInternal,
            "ranks are out of step: {} here, {} on rank {}",
            describe(failure.tag),
            describe(failure.other_tag),
            failure.rank
        );
    }
    return make_error(
        ErrorCode::kDeadlineExceeded,
        "{}: rank {} has not arrived within {} ms",
        describe(failure.tag),
        failure.rank,
        limit_ns / 1'000'000
    );
}

}  // namespace pitstop::kernels
