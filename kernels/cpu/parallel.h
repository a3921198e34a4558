// parallel_for for files compiled per level: the lambda's type belongs to this level, and so does
// the code instantiated for it.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/runtime/thread_pool.h"

namespace pitstop::kernels::PITSTOP_ISA {

// Calls fn(begin, end) for ranges of `grain` items; see ThreadPool::run.
template <class F>
PITSTOP_INLINE void for_ranges(Stream stream, std::int64_t num_items, std::int64_t grain, F& fn) {
    run_ranges(
        stream,
        num_items,
        grain < 1 ? 1 : grain,
        [](void* context, std::int64_t begin, std::int64_t end, int) {
            (*static_cast<F*>(context))(begin, end);
        },
        &fn
    );
}

// Returns how many items make a range worth waking a thread for: about 5 us of streaming.
PITSTOP_INLINE std::int64_t grain_of_bytes(std::int64_t bytes_per_item) {
    constexpr std::int64_t kBytesPerRange = 64 << 10;
    return bytes_per_item >= kBytesPerRange
               ? 1
               : kBytesPerRange / (bytes_per_item < 1 ? 1 : bytes_per_item);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
