// Faults on order: PITSTOP_EMULATED_FAULTS is a list, separated by commas, of
//
//   FUNCTION:N=ERROR    the N-th call of it in this process, from 1, fails:
//   cudaMemcpyAsync:17=cudaErrorUnknown kernel:N=hang       the N-th kernel never ends; copy:N=hang
//   likewise kernel:N=ERROR      the N-th kernel ends its context with this error, when it runs
//   ncclBroadcast:2=ncclSystemError    NCCL's functions fail with NCCL's errors, too
//   memory=BYTES        no allocation of this process succeeds that would bring what all processes
//                       have of its GPU over so many bytes
//
// and gpuK/ before any of them is for processes that use GPU K alone. An error that CUDA's
// documentation calls sticky ("must be terminated and relaunched") stays; the others are told once.
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

// Counts a call of `function` by a process that uses `gpu`, and says what is to happen to it.
[[nodiscard]] std::optional<Fault> fault_at(const std::string& function, int gpu);
// Orders one more: the `number`-th call of `function` from now on, from 1, fails with this error.
void fail_call(const std::string& function, std::int64_t number, int error);
// Calls of each function so far, those that failed among them.
[[nodiscard]] std::map<std::string, std::int64_t> all_num_calls();
// Calls of it so far, those that failed among them. "kernel" and "copy" count launches and copies,
// "pageable copy" those with an end in host memory that is not page-locked.
[[nodiscard]] std::int64_t num_calls(const std::string& function);
// Bytes that allocations may come to.
[[nodiscard]] std::int64_t memory_limit(int gpu);

}  // namespace pitstop::emulator
