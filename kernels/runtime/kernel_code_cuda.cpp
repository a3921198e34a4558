#include "kernels/runtime/check.cuh"
#include "kernels/runtime/driver.h"
#include "kernels/runtime/kernel_code.h"
#include "kernels/runtime/kernel_list.h"

#include <vector>

namespace pitstop::kernels {
namespace {

struct ListedKernel {
    const void* kernel = nullptr;
    const char* name = nullptr;
};
// Grows before main() begins, in whatever order the sources are initialized; then only read.
std::vector<ListedKernel>& listed() {
    static std::vector<ListedKernel> kernels;
    return kernels;
}

Error no_code(ErrorCode code, const ListedKernel& kernel, const std::string& error) {
    return {code, fmt::format("the code of {}: {}", kernel.name, error)};
}

}  // namespace

bool list_kernel(const void* kernel, const char* name) {
    listed().push_back({kernel, name});
    return true;
}

Result<int> load_kernels() {
    for (const ListedKernel& each : listed()) {
        cudaFunction_t function = nullptr;
        const cudaError_t found = cudaGetFuncBySymbol(&function, each.kernel);
        if (found != cudaSuccess) {
            (void)cudaGetLastError();
            const bool is_full = found == cudaErrorMemoryAllocation;
            return no_code(
                is_full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
                each,
                fmt::format("{} ({})", cudaGetErrorString(found), cudaGetErrorName(found))
            );
        }
        const CUresult loaded = driver().load_function(function);
        if (loaded != CUDA_SUCCESS) {
            const bool is_full = loaded == CUDA_ERROR_OUT_OF_MEMORY;
            return no_code(
                is_full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
                each,
                name_of(loaded)
            );
        }
    }
    return static_cast<int>(listed().size());
}

}  // namespace pitstop::kernels
