#include "kernels/cublas_lt.h"

#include "kernels/cuda_libraries.h"

#include <array>
#include <dlfcn.h>
#include <string_view>
#include <vector>

namespace pitstop::kernels {
namespace {

std::vector<std::string> places() {
    constexpr std::array<std::string_view, 2> kPackages{
        // The package nvidia-cublas of CUDA 13 lies in the first, that of 12 in the second.
        "nvidia/cu13/lib",
        "nvidia/cublas/lib"};
    return library_places(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), kPackages);
}

template <class Function>
bool resolve(void* library, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    return function != nullptr;
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
        resolve(library, "cublasLtGetVersion", lt.get_version) &&
        resolve(library, "cublasLtCreate", lt.create) &&
        resolve(library, "cublasLtMatmul", lt.matmul) &&
        resolve(library, "cublasLtMatmulDescCreate", lt.desc_create) &&
        resolve(library, "cublasLtMatmulDescSetAttribute", lt.desc_set) &&
        resolve(library, "cublasLtMatrixLayoutCreate", lt.layout_create) &&
        resolve(library, "cublasLtMatrixLayoutSetAttribute", lt.layout_set) &&
        resolve(library, "cublasLtMatmulPreferenceCreate", lt.preference_create) &&
        resolve(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set) &&
        resolve(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy) &&
        resolve(library, "cublasLtMatmulAlgoGetHeuristic", lt.get_heuristic);
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
