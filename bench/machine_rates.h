// What this machine's processor can do at most, measured: the limits that figures are divided by.
//
// Each is the best of several passes over some tenths of a second, all threads together: a limit,
// not an average. Threads are not bound to cores.
#pragma once

#include <cstdint>
#include <string_view>

namespace pitstop::bench {

// Bytes per second of reading `bytes` (shared evenly by the threads) again and again: of memory
// where that is far more than the caches hold, else of the caches.
[[nodiscard]] double read_rate(std::int64_t bytes, int threads);

// Bytes per second of memcpy, counting each byte copied once, though it is read and written.
[[nodiscard]] double copy_rate(std::int64_t bytes, int threads);

// Products with fp32 sums, two flops each: of fp32 (fused where the processor can), and of pairs of
// bf16 where it has an instruction for that (else as fp32: bf16 is widened first).
[[nodiscard]] double fp32_flop_rate(int threads);
[[nodiscard]] double bf16_flop_rate(int threads);
[[nodiscard]] std::string_view fp32_instruction();  // "vfmadd231ps zmm"
[[nodiscard]] std::string_view bf16_instruction();  // "vdpbf16ps zmm"

}  // namespace pitstop::bench
