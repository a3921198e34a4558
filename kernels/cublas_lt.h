// Finds cuBLASLt at run time: half a gigabyte that a build need not have and a bundle may bring.
// cuda_libraries.h says where it is looked for. Only the major version compiled against is taken:
// its structs are what we pass.
#pragma once

#include "base/result.h"

#include <cublasLt.h>

#include <cstddef>
#include <string>

namespace pitstop::kernels {

struct CublasLt {
    std::string path{};  // as it was opened
    cublasLtHandle_t handle = nullptr;

    decltype(&cublasLtGetVersion) get_version = nullptr;
    decltype(&cublasLtCreate) create = nullptr;
    decltype(&cublasLtMatmul) matmul = nullptr;
    decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;

    // Returns the process's, opened by the first call; a failure is the same every time. kNotFound
    // lists where it was looked for.
    [[nodiscard]] static Result<const CublasLt*> load();
};

// REQUIRES: load() succeeded, as open_cuda_device() sees to.
[[nodiscard]] const CublasLt& cublas_lt();

}  // namespace pitstop::kernels
