// Decides which of cuBLASLt's algorithms linear_cuda() takes for a product: they are timed at
// start-up, before anything serves, once per GPU, driver and version of the library, and kept in a
// file. What was never timed takes the library's own first guess, and no step waits for a clock
// (tune_linear_cuda, linear.h).
//
// Which one wins is up to the clock, and with it the order of the sums: two GPUs may differ in the
// last bits. Who must not see that has linear_cuda_deterministic(), which never comes here.
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

// Returns the M that an algorithm is chosen for: the largest that shares it. Steps of 16 to 256, of
// 64 to 1024, powers of two above, where tiles fill the GPU whatever M is: some 30 choices per
// weight, which are timed in seconds.
[[nodiscard]] constexpr std::int64_t gemm_bucket(std::int64_t M) {
    if (M > 1024) return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(M)));
    const std::int64_t step = M <= 256 ? 16 : 64;
    return (M + step - 1) / step * step;
}

// Takes the choices of the opened GPU from the file of its in `directory`. A file that is not
// there, or is damaged, holds none. Returns how many there are.
int load_linear_choices(const std::string& directory);

// Writes the file anew, with all choices that are known, and makes the directory.
// kUnavailable: it cannot be written.
Result<> save_linear_choices(const std::string& directory);

}  // namespace pitstop::kernels
