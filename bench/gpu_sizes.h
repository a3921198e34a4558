// Sizes of the GPU's benchmarks: those of qwen3-8b when it serves. The GPU in software of
// tests/emulated_gpu computes scaled-down sizes: its runs only test the program, and its figures
// mean nothing.
#pragma once

#include <cstdint>

namespace pitstop::kernels::bench {

#ifdef PITSTOP_EMULATED_GPU
inline constexpr std::int64_t kScaledDown = 64;
inline constexpr std::int64_t kRequestsScaledDown = 16;
#else
inline constexpr std::int64_t kScaledDown = 1;
inline constexpr std::int64_t kRequestsScaledDown = 1;
#endif

inline constexpr std::int64_t kPrefillTokens = 8192 / kScaledDown;  // of a step
inline constexpr std::int64_t kDecodeRequests = 64 / kRequestsScaledDown;

// The sizes of a model are its hidden and FFN sizes, its query heads, KV heads, head size
// and vocabulary.
struct GpuModelSizes {
    const char* name;
    std::int64_t H, F, Q, K, D, V;
};
inline constexpr GpuModelSizes kQwen3_8b{
    .name = "qwen3-8b",
    .H = 4096 / kScaledDown,
    .F = 12288 / kScaledDown,
    .Q = 32 / (kScaledDown > 1 ? 8 : 1),
    .K = 8 / (kScaledDown > 1 ? 8 : 1),
    .D = 128,
    .V = 151936 / kScaledDown};
inline constexpr GpuModelSizes kQwen3_0_6b{
    .name = "qwen3-0.6b",
    .H = 1024 / (kScaledDown > 1 ? 16 : 1),
    .F = 3072 / kScaledDown,
    .Q = 16 / (kScaledDown > 1 ? 8 : 1),
    .K = 8 / (kScaledDown > 1 ? 8 : 1),
    .D = 128,
    .V = 151936 / kScaledDown};

}  // namespace pitstop::kernels::bench
