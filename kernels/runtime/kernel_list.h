// The kernels of this program, listed before main() begins. Separate from kernel_code.h, because
// CUDA's compiler cannot read fmt, which a Result needs.
#pragma once

namespace pitstop::kernels {

// Lists a kernel of this program: launch() (launch.cuh) lists each kernel that it is
// compiled for. Always returns true, so that a variable's initializer can make the call.
bool list_kernel(const void* kernel, const char* name);

}  // namespace pitstop::kernels
