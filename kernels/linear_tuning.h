// Decides which of cuBLASLt's algorithms linear_cuda() uses for a product. Algorithms are timed at
// start-up, before anything serves, once per GPU, driver and version of the library, and the
// choices are kept in a file. A product that was never timed uses the library's own first guess,
// and no step waits for a clock (tune_linear_cuda, linear.h).
//
// The clock decides the winner, and with it the order of the sums: two GPUs may differ in the last
// bits. Callers whose bits must not differ use linear_cuda_deterministic(), which uses no timings.
//
// Source: cuBLAS documentation, cublasLtMatmulAlgo_t: it "can be trivially serialized and later
// restored for use with the same version of cuBLAS library".
// Thread: start-up's.
#pragma once

#include "base/result.h"
#include "kernels/linear.h"

#include <bit>
#include <cstdint>
#include <string>

namespace pitstop::kernels {

// Returns the largest M of the range that M is in. All M of a range share an algorithm, which is
// timed for the largest. Ranges have 16 values up to 256 and 64 up to 1024. Above 1024 they lie
// between powers of two, because tiles fill the GPU for any such M. A weight has about 30 choices,
// which are timed in seconds.
[[nodiscard]] constexpr std::int64_t gemm_bucket(std::int64_t M) {
    if (M > 1024) return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(M)));
    const std::int64_t step = M <= 256 ? 16 : 64;
    return (M + step - 1) / step * step;
}

// Reads the choices of the opened GPU from its file in `directory`. A missing or damaged file
// counts as empty. Returns the number of choices read.
int load_linear_choices(const std::string& directory);

// Rewrites the file with all known choices, and makes the directory. kUnavailable: it
// cannot be written.
Result<> save_linear_choices(const std::string& directory);

}  // namespace pitstop::kernels
