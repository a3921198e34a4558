// The kernels of this program, listed before main() begins. Apart from kernel_code.h, since CUDA's
// compiler cannot read the fmt that a Result needs.
#pragma once

namespace pitstop::kernels {

// Lists a kernel of this program: launch() (device/launch.cuh) does so for whatever it is compiled
// for. The value says nothing; it is what a variable is initialized with.
bool list_kernel(const void* kernel, const char* name);

}  // namespace pitstop::kernels
