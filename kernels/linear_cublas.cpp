#include "kernels/cublas_lt.h"
#include "kernels/cuda_device.h"
#include "kernels/device/launch.cuh"
#include "kernels/device_memory.h"
#include "kernels/linear_cuda.h"

#include <compare>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#define CUBLAS_CHECK(call)                                                                   \
    do {                                                                                     \
        if (const cublasStatus_t status_here = (call); status_here != CUBLAS_STATUS_SUCCESS) \
            cublas_failed(#call, status_here, __FILE__, __LINE__);                           \
    } while (false)

namespace pitstop {
namespace {

[[noreturn]] void cublas_failed(
    const char* call, cublasStatus_t status, const char* file, int line
) {
    end_by_cuda_failure(
        fmt::format("{}:{}: {}: cuBLAS status {}", file, line, call, static_cast<int>(status))
    );
}

// What the choice of an algorithm depends on.
struct Key {
    std::int64_t bucket = 0;  // of M
    std::int64_t N = 0;
    std::int64_t K = 0;
    std::int64_t x_stride = 0;
    std::int64_t w_stride = 0;
    std::int64_t y_stride = 0;
    DType y_dtype = DType::kF32;
    bool has_bias = false;  // in the epilogue
    std::uint32_t y_alignment = 16;
    std::int64_t workspace_bytes = 0;
    auto operator<=>(const Key&) const = default;
};

// The library's guesses that are timed against each other, and how often.
constexpr int kGuesses = 8;
constexpr int kTimedRuns = 3;  // after one that is not

// Made once per key and kept; the layouts' M and the bias pointer are set call by call.
struct Plan {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t w = nullptr;
    cublasLtMatrixLayout_t x = nullptr;
    cublasLtMatrixLayout_t y = nullptr;
    // The library's guesses, its best first; the fastest alone once they were timed.
    std::vector<cublasLtMatmulAlgo_t> algos{};
};

// Bounded: by the shapes of one model times the buckets of M, some 40 each.
struct Plans {
    std::mutex mutex{};
    std::map<Key, Plan> by_key{};
};
Plans& plans() {
    static Plans instance;
    return instance;
}

cudaDataType type_of(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublas_lt().desc_set(desc, attribute, &value, sizeof value));
}
template <class T>
void set(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute,
    const T& value
) {
    CUBLAS_CHECK(cublas_lt().preference_set(preference, attribute, &value, sizeof value));
}

// Row-major y[M, N] = x[M, K] w[N, K]^T is, column by column, y^T = w x^T with w transposed: all
// three are read along their contiguous dimension.
Plan make_plan(const Key& key) {
    const CublasLt& lt = cublas_lt();
    Plan plan;
    CUBLAS_CHECK(lt.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (key.has_bias) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    const auto layout = [&](cudaDataType type, std::int64_t rows, std::int64_t cols, std::int64_t ld
                        ) {
        cublasLtMatrixLayout_t made = nullptr;
        CUBLAS_CHECK(lt.layout_create(
            &made, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols), ld
        ));
        return made;
    };
    plan.w = layout(CUDA_R_16BF, key.K, key.N, key.w_stride);
    plan.x = layout(CUDA_R_16BF, key.K, key.bucket, key.x_stride);
    plan.y = layout(type_of(key.y_dtype), key.N, key.bucket, key.y_stride);

    cublasLtMatmulPreference_t preference = nullptr;
    CUBLAS_CHECK(lt.preference_create(&preference));
    set(preference,
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<std::size_t>(key.workspace_bytes));
    const std::uint32_t aligned_16 = 16;
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned_16);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned_16);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.y_alignment);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.y_alignment);
    cublasLtMatmulHeuristicResult_t guesses[kGuesses] = {};
    int num_guesses = 0;
    CUBLAS_CHECK(lt.get_heuristic(
        lt.handle,
        plan.desc,
        plan.w,
        plan.x,
        plan.y,
        plan.y,
        preference,
        kGuesses,
        guesses,
        &num_guesses
    ));
    CUBLAS_CHECK(lt.preference_destroy(preference));
    for (int i = 0; i < num_guesses; ++i) {
        if (guesses[i].state == CUBLAS_STATUS_SUCCESS) plan.algos.push_back(guesses[i].algo);
    }
    CUBLAS_CHECK(plan.algos.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS);
    return plan;
}

std::uint32_t alignment_of(const ActView& y) {
    const std::int64_t stride_bytes = y.stride * size_of(y.dtype);
    std::uint32_t alignment = 16;
    while (!is_aligned(y.data, alignment) || stride_bytes % alignment != 0) alignment /= 2;
    return alignment;
}

// REQUIRES: plans().mutex.
Plan& plan_of(const Key& key) {
    auto found = plans().by_key.find(key);
    if (found == plans().by_key.end()) {
        found = plans().by_key.emplace(key, make_plan(key)).first;
    }
    return found->second;
}

// y = x w^T (+ y, + bias in the epilogue) by one of the plan's algorithms; enqueued, or refused.
cublasStatus_t multiply(
    const LinearArgs& args,
    const LinearPart& part,
    const Key& key,
    const Plan& plan,
    const cublasLtMatmulAlgo_t& algo
) {
    const CublasLt& lt = cublas_lt();
    const auto M = static_cast<std::uint64_t>(args.x.rows);
    CUBLAS_CHECK(lt.layout_set(plan.x, CUBLASLT_MATRIX_LAYOUT_COLS, &M, sizeof M));
    CUBLAS_CHECK(lt.layout_set(plan.y, CUBLASLT_MATRIX_LAYOUT_COLS, &M, sizeof M));
    if (key.has_bias) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, part.bias);
    const float alpha = 1.f;
    const float beta = args.mode == LinearMode::kAdd ? 1.f : 0.f;
    return lt.matmul(
        lt.handle,
        plan.desc,
        &alpha,
        part.w.data,
        plan.w,
        args.x.data,
        plan.x,
        &beta,
        part.y.data,
        plan.y,
        part.y.data,
        plan.y,
        &algo,
        args.workspace.data,
        static_cast<std::size_t>(key.workspace_bytes),
        cuda_stream(args.stream)
    );
}

// Milliseconds of one product; infinite where the algorithm is refused.
double time_of(
    const LinearArgs& args,
    const LinearPart& part,
    const Key& key,
    const Plan& plan,
    const cublasLtMatmulAlgo_t& algo
) {
    constexpr double kRefused = std::numeric_limits<double>::infinity();
    const Result<DeviceEvent> begin = DeviceEvent::create();
    const Result<DeviceEvent> end = DeviceEvent::create();
    if (!begin || !end) return kRefused;
    if (multiply(args, part, key, plan, algo) != CUBLAS_STATUS_SUCCESS) return kRefused;
    begin->record(args.stream);
    for (int i = 0; i < kTimedRuns; ++i) CUBLAS_CHECK(multiply(args, part, key, plan, algo));
    end->record(args.stream);
    end->wait(kDeviceWaitMax, "a product that is timed");
    return end->ms_since(*begin);
}

// Times the guesses on the product that was asked for, whose result is written over each time: so
// not where it is added to, nor while a graph is captured, when nothing may be waited for. The
// stream is held up once per plan, for kGuesses * (1 + kTimedRuns) products. Which guess wins is up
// to the clock, and with it the order of the sums: two processes may differ in the last bits. Who
// must not see that has linear_cuda_deterministic(), which never comes here.
void keep_fastest(const LinearArgs& args, const LinearPart& part, const Key& key, Plan& plan) {
    if (plan.algos.size() == 1 || args.mode == LinearMode::kAdd || is_capturing(args.stream))
        return;
    const cublasLtMatmulAlgo_t* fastest = &plan.algos.front();
    double least = std::numeric_limits<double>::infinity();
    for (const cublasLtMatmulAlgo_t& algo : plan.algos) {
        const double ms = time_of(args, part, key, plan, algo);
        if (ms < least) {
            least = ms;
            fastest = &algo;
        }
    }
    plan.algos = {cublasLtMatmulAlgo_t(*fastest)};
}

void multiply(const LinearArgs& args, const LinearPart& part) {
    // The epilogue's bias has the type of y.
    const bool has_bias = part.bias != nullptr && part.y.dtype == DType::kBF16;
    Key key{
        .bucket = gemm_bucket(args.x.rows),
        .N = part.w.rows,
        .K = args.x.cols,
        .x_stride = args.x.stride,
        .w_stride = part.w.stride,
        .y_stride = part.y.stride,
        .y_dtype = part.y.dtype,
        .has_bias = has_bias,
        .y_alignment = alignment_of(part.y),
        .workspace_bytes = args.workspace.data == nullptr ? 0 : args.workspace.bytes,
    };
    {
        const std::scoped_lock lock(plans().mutex);
        Plan& plan = plan_of(key);
        keep_fastest(args, part, key, plan);
        cublasStatus_t status = multiply(args, part, key, plan, plan.algos.front());
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
            // Chosen for the bucket's M, but not made for this one: a plan of its own.
            key.bucket = args.x.rows;
            const Plan& own = plan_of(key);
            status = multiply(args, part, key, own, own.algos.front());
        }
        CUBLAS_CHECK(status);
    }
    if (part.bias != nullptr && !has_bias) {
        add_bias_cuda(
            {static_cast<float*>(part.y.data), part.y.rows, part.y.cols, part.y.stride},
            part.bias,
            args.stream
        );
    }
}

// Whether two parts are one product: their weights follow each other in memory, and their outputs
// are neighbouring columns of one matrix.
bool are_joined(const LinearPart& a, const LinearPart& b) {
    return a.w.data + a.w.rows * a.w.stride == b.w.data && a.w.stride == b.w.stride &&
           a.y.dtype == b.y.dtype && a.y.stride == b.y.stride &&
           static_cast<std::byte*>(a.y.data) + a.y.cols * size_of(a.y.dtype) == b.y.data &&
           (a.bias == nullptr ? b.bias == nullptr : a.bias + a.w.rows == b.bias);
}

}  // namespace

void linear_cublas(const LinearArgs& args) {
    for (std::size_t i = 0; i < args.parts.size();) {
        LinearPart whole = args.parts[i++];
        for (; i < args.parts.size() && are_joined(whole, args.parts[i]); ++i) {
            whole.w.rows += args.parts[i].w.rows;
            whole.y.cols += args.parts[i].y.cols;
        }
        multiply(args, whole);
    }
}

}  // namespace pitstop
