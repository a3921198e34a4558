#include "base/isa.h"

#include <array>
#include <cstdlib>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pitstop {
namespace {

constexpr std::array kLevels = {
    IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16};

#if defined(__x86_64__)
// clang 14's run-time check does not know F16C. Its registers are AVX's, so no check for
// them is needed.
bool has_f16c() {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

IsaLevel find_best() {
#if defined(__x86_64__)
    // The compiler's run-time check also verifies that the operating system saves the registers.
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (!has_avx2) return IsaLevel::kScalar;
    const bool has_avx512 =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!has_avx512) return IsaLevel::kAvx2;
    return __builtin_cpu_supports("avx512bf16") ? IsaLevel::kAvx512Bf16 : IsaLevel::kAvx512;
#else
    return IsaLevel::kScalar;
#endif
}

}  // namespace

std::string_view name_of(IsaLevel level) {
    switch (level) {
        case IsaLevel::kScalar:
            return "scalar";
        case IsaLevel::kAvx2:
            return "avx2";
        case IsaLevel::kAvx512:
            return "avx512";
        case IsaLevel::kAvx512Bf16:
            return "avx512bf16";
    }
    CHECK(false);
}

// Asks the processor once, because every digest of a small tensor needs the answer. In a virtual
// machine, the host answers CPUID, which takes 11 us (AMD EPYC).
IsaLevel best_isa() {
    static const IsaLevel best = find_best();
    return best;
}

Result<IsaLevel> choose_isa(std::string_view asked) {
    const char* const from_environment = std::getenv("PITSTOP_CPU");
    if (asked.empty() && from_environment != nullptr) asked = from_environment;
    if (asked.empty()) return best_isa();
    for (const IsaLevel level : kLevels) {
        if (name_of(level) != asked) continue;
        if (level <= best_isa()) return level;
        return make_error(
            ErrorCode::kUnsupported,
            "PITSTOP_CPU: this machine has no {}; its best is {}",
            asked,
            name_of(best_isa())
        );
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "PITSTOP_CPU: unknown level '{}'; it takes scalar, avx2, avx512 or avx512bf16",
        asked
    );
}

}  // namespace pitstop
