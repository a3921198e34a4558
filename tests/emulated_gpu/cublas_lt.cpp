// cuBLASLt as a library that is opened at run time: products in the emulated GPU's streams. Sums
// are in double and rounded once. Source: cuBLAS documentation, "cublasLtMatmul": column-major
// matrices, D = alpha op(A) op(B) + beta C, a bias for each row of D in the epilogue, the alignment
// that an algorithm requires. Tests choose the answers (products.h).
#include "tests/emulated_gpu/bf16.h"
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/code.h"
#include "tests/emulated_gpu/products.h"
#include "tests/emulated_gpu/streams.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace pitstop::emulator {
namespace {

struct Desc {
    cublasOperation_t op_a = CUBLAS_OP_N;
    cublasOperation_t op_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
};

struct Layout {
    cudaDataType type = CUDA_R_32F;
    std::uint64_t rows = 0;
    std::uint64_t cols = 0;
    std::int64_t ld = 0;

    [[nodiscard]] std::size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
};

struct Preference {
    std::uint32_t alignment_d = 256;
};

// The opaque bytes of a heuristic's answer.
struct Algorithm {
    std::uint64_t number = 0;
    std::uint64_t alignment_d = 0;
};

constexpr std::size_t kAlignmentAB = 16;
// An address for each algorithm's kernel, which identifies its code (code.h).
constexpr char kCode[16] = {};

template <class T, class Handle>
T& as(Handle handle) {
    return *reinterpret_cast<T*>(handle);
}

template <class T>
bool read(const void* value, std::size_t bytes, T& into) {
    if (bytes != sizeof into) return false;
    std::memcpy(&into, value, sizeof into);
    return true;
}

struct Product {
    Desc desc{};
    Layout a_layout{}, b_layout{}, d_layout{};
    float alpha = 1.f;
    float beta = 0.f;
    const std::uint16_t* a = nullptr;
    const std::uint16_t* b = nullptr;
    std::byte* d = nullptr;
    std::byte* workspace = nullptr;
    std::size_t workspace_bytes = 0;

    // Computes column `col` of D. A is transposed, so both operands are read along their columns.
    void run_column(std::uint64_t col) const {
        const std::uint64_t K = b_layout.rows;
        std::vector<double> x(K);
        const std::uint16_t* const from = b + static_cast<std::int64_t>(col) * b_layout.ld;
        for (std::uint64_t k = 0; k < K; ++k) x[k] = double{widen(from[k])};
        for (std::uint64_t row = 0; row < d_layout.rows; ++row) {
            const std::uint16_t* const w = a + static_cast<std::int64_t>(row) * a_layout.ld;
            double sum = 0.0;
            for (std::uint64_t k = 0; k < K; ++k) sum += x[k] * double{widen(w[k])};
            put(row, col, sum * double{alpha});
        }
    }

    void put(std::uint64_t row, std::uint64_t col, double sum) const {
        const auto index =
            static_cast<std::int64_t>(row) + static_cast<std::int64_t>(col) * d_layout.ld;
        auto* const to = d + index * static_cast<std::int64_t>(d_layout.element_bytes());
        const bool is_f32 = d_layout.type == CUDA_R_32F;
        float before = 0.f;
        std::uint16_t before_bits = 0;
        if (is_f32) std::memcpy(&before, to, sizeof before);
        if (!is_f32) std::memcpy(&before_bits, to, sizeof before_bits);
        // If beta is 0, C may contain NaN: it is not read.
        if (beta != 0.f) sum += double{beta} * double{is_f32 ? before : widen(before_bits)};
        if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
            sum += double{widen(static_cast<const std::uint16_t*>(desc.bias)[row])};
        const auto rounded = static_cast<float>(sum);
        const std::uint16_t bits = narrow(rounded);
        if (is_f32) std::memcpy(to, &rounded, sizeof rounded);
        if (!is_f32) std::memcpy(to, &bits, sizeof bits);
    }
};

bool is_aligned(const void* pointer, std::uint64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// Whether the matrices are bf16 of shapes that fit, with A transposed, and D has the alignment for
// which the algorithm was chosen.
bool is_valid(const Product& product, const Algorithm& algorithm) {
    const bool fits = product.desc.op_a == CUBLAS_OP_T && product.desc.op_b == CUBLAS_OP_N &&
                      product.a_layout.rows == product.b_layout.rows &&
                      product.a_layout.cols == product.d_layout.rows &&
                      product.b_layout.cols == product.d_layout.cols &&
                      product.a_layout.type == CUDA_R_16BF && product.b_layout.type == CUDA_R_16BF;
    return fits && is_aligned(product.a, kAlignmentAB) && is_aligned(product.b, kAlignmentAB) &&
           is_aligned(product.d, algorithm.alignment_d);
}

bool is_supported(const Product& product, const Algorithm& algorithm) {
    const Products& all = products();
    const bool refuses =
        product.d_layout.cols == all.cols_refused &&
        std::find(
            all.algorithms_that_refuse.begin(), all.algorithms_that_refuse.end(), algorithm.number
        ) != all.algorithms_that_refuse.end();
    return algorithm.number < all.ms.size() && !refuses;
}

}  // namespace
}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

std::size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    static int one = 0;
    *handle = reinterpret_cast<cublasLtHandle_t>(&one);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType scale
) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t handle,
    cublasLtMatmulDescAttributes_t attribute,
    const void* value,
    std::size_t bytes
) {
    Desc& desc = as<Desc>(handle);
    bool is_read = false;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
            is_read = read(value, bytes, desc.op_a);
            break;
        case CUBLASLT_MATMUL_DESC_TRANSB:
            is_read = read(value, bytes, desc.op_b);
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            is_read = read(value, bytes, desc.epilogue);
            break;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            is_read = read(value, bytes, desc.bias);
            break;
    }
    return is_read ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t* layout,
    cudaDataType type,
    std::uint64_t rows,
    std::uint64_t cols,
    std::int64_t ld
) {
    if (ld < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, ld});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t layout,
    cublasLtMatrixLayoutAttribute_t attribute,
    const void* value,
    std::size_t bytes
) {
    if (attribute != CUBLASLT_MATRIX_LAYOUT_COLS) return CUBLAS_STATUS_INVALID_VALUE;
    return read(value, bytes, as<Layout>(layout).cols) ? CUBLAS_STATUS_SUCCESS
                                                       : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute,
    const void* value,
    std::size_t bytes
) {
    if (attribute != CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) return CUBLAS_STATUS_SUCCESS;
    return read(value, bytes, as<Preference>(preference).alignment_d) ? CUBLAS_STATUS_SUCCESS
                                                                      : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete &as<Preference>(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t,
    cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t,
    cublasLtMatmulPreference_t preference,
    int num_wanted,
    cublasLtMatmulHeuristicResult_t results[],
    int* num_found
) {
    Products& all = products();
    ++all.num_heuristics;
    // Source: "cublasLtMatmulAlgoGetHeuristic": NOT_SUPPORTED if no algorithm exists.
    *num_found = 0;
    if (!all.has_guesses) return CUBLAS_STATUS_NOT_SUPPORTED;
    // No documentation covers a bias epilogue whose pointer is null: refused here.
    const Desc& asked = as<Desc>(desc);
    if (asked.epilogue == CUBLASLT_EPILOGUE_BIAS && asked.bias == nullptr)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *num_found = std::min(num_wanted, static_cast<int>(all.ms.size()));
    for (int i = 0; i < *num_found; ++i) {
        const Algorithm algorithm{
            static_cast<std::uint64_t>(i), as<Preference>(preference).alignment_d};
        results[i] = {};
        std::memcpy(results[i].algo.data, &algorithm, sizeof algorithm);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t,
    cublasLtMatmulDesc_t desc,
    const void* alpha,
    const void* a,
    cublasLtMatrixLayout_t a_layout,
    const void* b,
    cublasLtMatrixLayout_t b_layout,
    const void* beta,
    const void* c,
    cublasLtMatrixLayout_t,
    void* d,
    cublasLtMatrixLayout_t d_layout,
    const cublasLtMatmulAlgo_t* algo,
    void* workspace,
    std::size_t workspace_bytes,
    cudaStream_t stream_handle
) {
    Algorithm algorithm;
    std::memcpy(&algorithm, algo->data, sizeof algorithm);
    Product product{
        .desc = as<Desc>(desc),
        .a_layout = as<Layout>(a_layout),
        .b_layout = as<Layout>(b_layout),
        .d_layout = as<Layout>(d_layout),
        .alpha = *static_cast<const float*>(alpha),
        .beta = *static_cast<const float*>(beta),
        .a = static_cast<const std::uint16_t*>(a),
        .b = static_cast<const std::uint16_t*>(b),
        .d = static_cast<std::byte*>(d),
        .workspace = static_cast<std::byte*>(workspace),
        .workspace_bytes = workspace_bytes};
    if (c != d || !is_valid(product, algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
    Products& all = products();
    if (!is_supported(product, algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (enter_call("cublasLtMatmul") != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    const std::shared_ptr<Stream> stream = stream_of(stream_handle);
    if (stream == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (!load_code(stream->gpu, kCode + algorithm.number % sizeof kCode, CodeOf::kLibrary))
        return CUBLAS_STATUS_ALLOC_FAILED;
    all.used.push_back(algorithm.number);
    const double ms = all.ms[algorithm.number];
    enqueue(
        stream,
        {.kind = WorkKind::kKernel,
         .name = "a product",
         .gpu = stream->gpu,
         .begin = [product, ms]() -> Step {
             auto col = std::make_shared<std::uint64_t>(0);
             // Overwrites the scratch, so that a later reader finds nothing of use.
             std::memset(product.workspace, 0xff, product.workspace_bytes);
             return [product, col, ms] {
                 if (*col < product.d_layout.cols) product.run_column((*col)++);
                 if (*col == product.d_layout.cols) advance_gpu_clock(ms);
                 return *col == product.d_layout.cols;
             };
         }}
    );
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
