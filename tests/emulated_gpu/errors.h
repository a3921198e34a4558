// The errors of CUDA's runtime that the emulated one gives: number, name, sentence, and whether it
// stays. Source: CUDA Runtime API, "Data types used by CUDA Runtime", cudaError_t. And NCCL's, by
// their numbers behind kNcclErrors. Source: NCCL documentation, "Types", ncclResult_t.
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

// Null: none of these.
[[nodiscard]] const ErrorEntry* error_entry(int number);
[[nodiscard]] std::optional<int> error_named(const std::string& name);

}  // namespace pitstop::emulator
