// Ordered faults: PITSTOP_EMULATED_FAULTS is a list, separated by commas, of
//
//   FUNCTION:N=ERROR    the N-th call of FUNCTION in this process, from 1, fails with this error:
//                       cudaMemcpyAsync:17=cudaErrorUnknown, ncclBroadcast:2=ncclSystemError
//   kernel:N=hang       the N-th kernel never ends
//   copy:N=hang         the N-th copy never ends
//   kernel:N=ERROR      the N-th kernel ends its context with this error, when it runs
//   memory=BYTES        an allocation of this process fails if all processes would then have more
//                       than BYTES of its GPU
//
// A prefix gpuK/ restricts an entry to processes that use GPU K. An error that CUDA's documentation
// calls sticky ("must be terminated and relaunched") stays; others are reported once.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace pitstop::emulator {

enum class FaultKind : std::uint8_t { kError, kHang };
struct Fault {
    FaultKind kind = FaultKind::kError;
    int error = 0;  // a cudaError_t
};

// Counts a call of `function` by a process that uses `gpu`, and returns its ordered fault, if any.
[[nodiscard]] std::optional<Fault> fault_at(const std::string& function, int gpu);
// Orders one more fault: the `number`-th call of `function` from now on, from 1, fails with this
// error.
void fail_call(const std::string& function, std::int64_t number, int error);
// Calls of each function so far, including the failed ones.
[[nodiscard]] std::map<std::string, std::int64_t> all_num_calls();
// Calls of `function` so far, including the failed ones. "kernel" and "copy" count launches and
// copies, "pageable copy" those with an end in host memory that is not page-locked.
[[nodiscard]] std::int64_t num_calls(const std::string& function);
// The most bytes that allocations may have in total.
[[nodiscard]] std::int64_t memory_limit(int gpu);

}  // namespace pitstop::emulator
