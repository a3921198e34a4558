// Finds cuBLASLt at run time: the library is half a gigabyte large, so builds do not require it and
// bundles may include it. cuda_libraries.h lists the places. Only the major version compiled
// against is accepted: we pass its structs.
#pragma once

#include "base/result.h"

#include <cublasLt.h>

#include <cstddef>
#include <string>

namespace pitstop::kernels {

struct CublasLt {
    std::string path{};  // as opened
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

    // Returns the process's library, opened by the first call; later calls return the same failure.
    // kNotFound lists the places that were searched.
    [[nodiscard]] static Result<const CublasLt*> load();
};

// REQUIRES: load() succeeded, which open_cuda_device() ensures.
[[nodiscard]] const CublasLt& cublas_lt();

}  // namespace pitstop::kernels
