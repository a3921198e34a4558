// Replaces kernels/device/system_scope.cuh in the emulator. The host orders every load and store
// like this acquire and release, so the emulator does not find where one of them is missing.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>

namespace pitstop::kernels {

inline void store_release_system(std::uint64_t* to, std::uint64_t value) {
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
    emulator::tell_others();
}

inline std::uint64_t load_acquire_system(const std::uint64_t* from) {
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

inline std::uint64_t global_nanoseconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()
    );
}

inline void stand_by() { emulator::stand_by(); }

}  // namespace pitstop::kernels
