#include "kernels/cublas_lt.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <vector>

namespace pitstop {
namespace {

std::vector<std::string> places() {
    const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    std::vector<std::string> paths;
    std::error_code error;
    const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error) {
        const std::filesystem::path folder = executable.parent_path();
        paths.push_back((folder / name).string());
        paths.push_back((folder.parent_path() / "lib" / name).string());
    }
    paths.push_back(name);  // rpath, LD_LIBRARY_PATH, ld.so.cache
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const char* const home = std::getenv(variable); home != nullptr)
            paths.push_back((std::filesystem::path(home) / "lib64" / name).string());
    }
    paths.push_back("/usr/local/cuda/lib64/" + name);
    return paths;
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
            "LD_LIBRARY_PATH or under CUDA_HOME/lib64. Tried:{}",
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

}  // namespace pitstop
