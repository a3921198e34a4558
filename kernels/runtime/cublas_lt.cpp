#include "kernels/runtime/cublas_lt.h"

#include "kernels/runtime/cuda_libraries.h"

#include <array>
#include <dlfcn.h>
#include <string_view>
#include <vector>

namespace pitstop::kernels {
namespace {

std::vector<std::string> places() {
    constexpr std::array<std::string_view, 2> kPackages{
        // The place of CUDA 13's package nvidia-cublas; the next one is CUDA 12's.
        "nvidia/cu13/lib",
        "nvidia/cublas/lib"};
    return library_places(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), kPackages);
}

Result<CublasLt> open_library() {
    std::string tried;
    void* library = nullptr;
    CublasLt lt;
    for (const std::string& path : places()) {
        library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr) {
            lt.path = path;
            break;
        }
        const char* const why = dlerror();
        tried += fmt::format("\n  {}", why != nullptr ? why : path.c_str());
    }
    if (library == nullptr) {
        return make_error(
            ErrorCode::kNotFound,
            "libcublasLt.so.{} was not found; put it beside the executable, in its ../lib, on "
            "LD_LIBRARY_PATH, under CUDA_HOME/lib64 or, with pip, where python3 finds "
            "nvidia-cublas. "
            "Tried:{}",
            CUBLAS_VER_MAJOR,
            tried
        );
    }
    const bool has_all =
        find_function(library, "cublasLtGetVersion", lt.get_version) &&
        find_function(library, "cublasLtCreate", lt.create) &&
        find_function(library, "cublasLtMatmul", lt.matmul) &&
        find_function(library, "cublasLtMatmulDescCreate", lt.desc_create) &&
        find_function(library, "cublasLtMatmulDescSetAttribute", lt.desc_set) &&
        find_function(library, "cublasLtMatrixLayoutCreate", lt.layout_create) &&
        find_function(library, "cublasLtMatrixLayoutSetAttribute", lt.layout_set) &&
        find_function(library, "cublasLtMatmulPreferenceCreate", lt.preference_create) &&
        find_function(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set) &&
        find_function(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy) &&
        find_function(library, "cublasLtMatmulAlgoGetHeuristic", lt.get_heuristic);
    if (!has_all) {
        return make_error(
            ErrorCode::kUnsupported, "{} lacks a symbol of cublasLt {}", lt.path, CUBLAS_VER_MAJOR
        );
    }
    if (const cublasStatus_t status = lt.create(&lt.handle); status != CUBLAS_STATUS_SUCCESS) {
        return make_error(
            ErrorCode::kUnavailable,
            "cublasLtCreate of {} failed with status {}",
            lt.path,
            static_cast<int>(status)
        );
    }
    return lt;
}

}  // namespace

Result<const CublasLt*> CublasLt::load() {
    static const Result<CublasLt> loaded = open_library();
    if (!loaded) return loaded.error();
    return &*loaded;
}

const CublasLt& cublas_lt() {
    const Result<const CublasLt*> loaded = CublasLt::load();
    CHECK(loaded.has_value());
    return **loaded;
}

}  // namespace pitstop::kernels
