// The emulated errors of CUDA's runtime: number, name, sentence, and whether it is sticky. Source:
// CUDA Runtime API, "Data types used by CUDA Runtime", cudaError_t. NCCL's errors have kNcclErrors
// added to their numbers. Source: NCCL documentation, "Types", ncclResult_t.
#pragma once

#include <optional>
#include <string>

namespace pitstop::emulator {

inline constexpr int kNcclErrors = 100'000;

struct ErrorEntry {
    int number;
    const char* name;
    const char* text;
    // "This leaves the process in an inconsistent state and any further CUDA work will return the
    // same error. To continue using CUDA, the process must be terminated and relaunched."
    bool is_sticky;
};

// Null: no such error.
[[nodiscard]] const ErrorEntry* error_entry(int number);
[[nodiscard]] std::optional<int> error_named(const std::string& name);

}  // namespace pitstop::emulator
