// The gated activation of one number (silu_mul.h).
#pragma once

#include <cuda_runtime.h>

namespace pitstop::kernels {

// exp(-gate) may be infinite, and then the quotient is -0 or 0, as it should be; the fast division
// also returns 0 if the divisor is above 2^126.
__device__ inline float silu_mul(float gate, float up) {
    return __fdividef(gate, 1.f + expf(-gate)) * up;
}

}  // namespace pitstop::kernels
