#include "base/log.h"
#include "base/mutex.h"
#include "kernels/cublas_choices.h"
#include "kernels/linear_cuda.h"
#include "kernels/linear_tuning.h"
#include "kernels/runtime/cublas_lt.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/launch.cuh"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#define CUBLAS_CHECK(call)                                                                   \
    do {                                                                                     \
        if (const cublasStatus_t status_here = (call); status_here != CUBLAS_STATUS_SUCCESS) \
            cublas_failed(#call, status_here, __FILE__, __LINE__);                           \
    } while (false)

namespace pitstop::kernels {
namespace {

[[noreturn]] void cublas_failed(
    const char* call, cublasStatus_t status, const char* file, int line
) {
    end_by_cuda_failure(
        fmt::format("{}:{}: {}: cuBLAS status {}", file, line, call, static_cast<int>(status))
    );
}

// How many of the library's guesses are timed against each other.
constexpr int kGuesses = 8;
// Each guess is timed over kFirstProducts, after one untimed product. Then the best two are timed
// for long enough to tell a difference of some percent, over at most kLastProductsMax.
constexpr int kFirstProducts = 2;
constexpr double kLastMs = 2.0;
constexpr int kLastProductsMax = 64;

// A tensor of weights begins at a multiple of this many bytes.
constexpr std::uintptr_t kBiasAlignment = 256;

// A plan is made once per key and kept; each call sets the layouts' M and the bias pointer.
struct Plan {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t w = nullptr;
    cublasLtMatrixLayout_t x = nullptr;
    cublasLtMatrixLayout_t y = nullptr;
    // The choice, or the library's first guess. Empty: cuBLASLt cannot compute the product.
    std::optional<cublasLtMatmulAlgo_t> algo{};
};

// Bounded: plans by the shapes of one model times the buckets of M, about 40 each; choices by
// kChoicesMax.
struct Plans {
    Mutex mutex{};
    std::map<CublasKey, Plan> by_key GUARDED_BY(mutex){};
    CublasChoices choices GUARDED_BY(mutex){};
};
Plans& plans() {
    static Plans instance;
    return instance;
}

// Returns whether the library does not support the call, or refuses its arguments.
bool is_refusal(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

// The library loads a kernel onto the GPU for its first product, which fails without free memory.
bool lacks_memory(cublasStatus_t status) { return status == CUBLAS_STATUS_ALLOC_FAILED; }

cudaDataType type_of(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    const std::size_t bytes = std::span(&value, 1).size_bytes();
    CUBLAS_CHECK(cublas_lt().desc_set(desc, attribute, &value, bytes));
}
template <class T>
void set(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute,
    const T& value
) {
    const std::size_t bytes = std::span(&value, 1).size_bytes();
    CUBLAS_CHECK(cublas_lt().preference_set(preference, attribute, &value, bytes));
}

// Row-major y[M, N] = x[M, K] w[N, K]^T is in column-major order y^T = w x^T with w transposed: all
// three are read along their contiguous dimension.
Plan make_plan(const CublasKey& key) {
    const CublasLt& lt = cublas_lt();
    Plan plan;
    CUBLAS_CHECK(lt.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (key.has_bias) {
        set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        // The heuristic gets a placeholder for the bias pointer, with the alignment of all biases:
        // the documentation does not promise an answer for a null pointer.
        set(plan.desc,
            CUBLASLT_MATMUL_DESC_BIAS_POINTER,
            reinterpret_cast<const void*>(kBiasAlignment));
    }
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
    return plan;
}

void set_rows(const Plan& plan, std::int64_t M) {
    const auto cols = static_cast<std::uint64_t>(M);  // rows become columns in column-major order
    for (const cublasLtMatrixLayout_t layout : {plan.x, plan.y}) {
        CUBLAS_CHECK(cublas_lt().layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof cols)
        );
    }
}

// Returns the library's guesses for the plan's product, its best first; none if it refuses the
// product.
std::vector<cublasLtMatmulAlgo_t> guesses_for(const CublasKey& key, const Plan& plan) {
    const CublasLt& lt = cublas_lt();
    set_rows(plan, key.bucket);
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
    const cublasStatus_t status = lt.get_heuristic(
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
    );
    CUBLAS_CHECK(lt.preference_destroy(preference));
    if (is_refusal(status)) return {};
    CUBLAS_CHECK(status);
    std::vector<cublasLtMatmulAlgo_t> algos;
    for (int i = 0; i < num_guesses; ++i) {
        if (guesses[i].state == CUBLAS_STATUS_SUCCESS) algos.push_back(guesses[i].algo);
    }
    return algos;
}

std::uint32_t alignment_of(const ActView& y) {
    const std::int64_t stride_bytes = y.stride * size_of(y.dtype);
    std::uint32_t alignment = 16;
    while (!is_aligned(y.data, alignment) || stride_bytes % alignment != 0) alignment /= 2;
    return alignment;
}

// The epilogue expects biases of the type of y, and biases are bf16.
bool has_epilogue_bias(const LinearPart& part) {
    return part.bias != nullptr && part.y.dtype == DType::kBF16;
}

CublasKey key_of(const LinearArgs& args, const LinearPart& part) {
    return {
        .bucket = gemm_bucket(args.x.rows),
        .N = part.w.rows,
        .K = args.x.cols,
        .x_stride = args.x.stride,
        .w_stride = part.w.stride,
        .y_stride = part.y.stride,
        .y_dtype = part.y.dtype,
        .has_bias = has_epilogue_bias(part),
        .y_alignment = alignment_of(part.y),
        .workspace_bytes = args.workspace.data == nullptr ? 0 : args.workspace.bytes,
    };
}

Plan& plan_of(const CublasKey& key) REQUIRES(plans().mutex) {
    if (const auto found = plans().by_key.find(key); found != plans().by_key.end())
        return found->second;
    Plan plan = make_plan(key);
    if (const auto chosen = plans().choices.find(key); chosen != plans().choices.end()) {
        plan.algo = chosen->second;
    } else if (const auto guesses = guesses_for(key, plan); !guesses.empty()) {
        plan.algo = guesses.front();
    }
    return plans().by_key.emplace(key, plan).first->second;
}

// Computes y = x w^T (+ y, + bias in the epilogue) by one of the plan's algorithms; the product is
// enqueued, or the library refuses it.
cublasStatus_t multiply(
    const LinearArgs& args,
    const LinearPart& part,
    const CublasKey& key,
    const Plan& plan,
    const cublasLtMatmulAlgo_t& algo
) {
    const CublasLt& lt = cublas_lt();
    set_rows(plan, args.x.rows);
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

// Returns the milliseconds per product over the rotation; infinite if the algorithm is refused.
double time_of(
    std::span<const LinearArgs> rotation,
    std::span<const LinearPart> parts,  // of the product, one per layer of the rotation
    const CublasKey& key,
    const Plan& plan,
    const cublasLtMatmulAlgo_t& algo,
    int num_products
) {
    constexpr double kRefused = std::numeric_limits<double>::infinity();
    const Result<DeviceEvent> begin = DeviceEvent::create();
    const Result<DeviceEvent> end = DeviceEvent::create();
    if (!begin || !end) return kRefused;
    const auto once = [&](int number) {
        const std::size_t i = static_cast<std::size_t>(number) % rotation.size();
        return multiply(rotation[i], parts[i], key, plan, algo);
    };
    const cublasStatus_t first = once(0);
    if (is_refusal(first) || lacks_memory(first)) return kRefused;
    CUBLAS_CHECK(first);
    begin->record(rotation[0].stream);
    for (int i = 1; i <= num_products; ++i) CUBLAS_CHECK(once(i));
    end->record(rotation[0].stream);
    end->wait(kDeviceWaitMax, "a product that is timed");
    return end->ms_since(*begin) / num_products;
}

// REQUIRES: `plan` belongs to the key, and has an algorithm.
cublasLtMatmulAlgo_t fastest(
    std::span<const LinearArgs> rotation,
    std::span<const LinearPart> parts,
    const CublasKey& key,
    const Plan& plan
) {
    std::vector<std::pair<double, cublasLtMatmulAlgo_t>> timed;
    for (const cublasLtMatmulAlgo_t& algo : guesses_for(key, plan)) {
        const double ms = time_of(rotation, parts, key, plan, algo, kFirstProducts);
        if (ms < std::numeric_limits<double>::infinity()) timed.emplace_back(ms, algo);
    }
    if (timed.empty()) return *plan.algo;
    const auto is_faster = [](const auto& a, const auto& b) { return a.first < b.first; };
    std::stable_sort(timed.begin(), timed.end(), is_faster);
    timed.resize(std::min<std::size_t>(timed.size(), 2));
    const double num =
        std::clamp(kLastMs / timed.front().first, double{kFirstProducts}, double{kLastProductsMax});
    for (auto& [ms, algo] : timed)
        ms = time_of(rotation, parts, key, plan, algo, static_cast<int>(num));
    return std::min_element(timed.begin(), timed.end(), is_faster)->second;
}

// Returns false if cuBLASLt refuses the product.
bool try_multiply(const LinearArgs& args, const LinearPart& part, CublasKey key) {
    const MutexLock lock(plans().mutex);
    for (const std::int64_t bucket : {key.bucket, args.x.rows}) {
        // The plan was chosen for the bucket's M. If it cannot compute this M, this M gets a plan
        // of its own.
        key.bucket = bucket;
        Plan& plan = plan_of(key);
        if (!plan.algo) continue;
        const cublasStatus_t status = multiply(args, part, key, plan, *plan.algo);
        if (lacks_memory(status)) {
            spdlog::warn(
                "cuBLASLt has no GPU memory for the product {} x {} x {}: our own kernel computes "
                "it",
                args.x.rows,
                key.N,
                key.K
            );
            return false;
        }
        if (!is_refusal(status)) {
            CUBLAS_CHECK(status);
            return true;
        }
        if (bucket != args.x.rows) continue;
        spdlog::warn(
            "cuBLASLt refuses the product {} x {} x {} (status {}): our own kernel computes it",
            args.x.rows,
            key.N,
            key.K,
            static_cast<int>(status)
        );
        plan.algo.reset();
    }
    return false;
}

void multiply(const LinearArgs& args, const LinearPart& part) {
    const CublasKey key = key_of(args, part);
    if (!try_multiply(args, part, key)) {
        LinearArgs own = args;
        own.parts = {&part, 1};
        linear_cuda_deterministic(own);
    } else if (part.bias != nullptr && !key.has_bias) {
        add_bias_cuda(
            {static_cast<float*>(part.y.data), part.y.rows, part.y.cols, part.y.stride},
            part.bias,
            args.stream
        );
    }
}

// Returns whether two parts are one product: their weights follow each other in memory, and their
// outputs are neighbouring columns of one matrix.
bool are_joined(const LinearPart& a, const LinearPart& b) {
    return a.w.data + a.w.rows * a.w.stride == b.w.data && a.w.stride == b.w.stride &&
           a.y.dtype == b.y.dtype && a.y.stride == b.y.stride &&
           static_cast<std::byte*>(a.y.data) + a.y.cols * size_of(a.y.dtype) == b.y.data &&
           (a.bias == nullptr ? b.bias == nullptr : a.bias + a.w.rows == b.bias);
}

// The products of a call's parts.
struct Products {
    std::array<LinearPart, LinearArgs::kPartsMax> parts{};
    std::size_t num = 0;
};
Products products_of(const LinearArgs& args) {
    Products products;
    for (const LinearPart& part : args.parts) {
        if (products.num != 0 && are_joined(products.parts[products.num - 1], part)) {
            LinearPart& last = products.parts[products.num - 1];
            last.w.rows += part.w.rows;
            last.y.cols += part.y.cols;
        } else {
            products.parts[products.num++] = part;
        }
    }
    return products;
}

// Times one product of the rotation, unless it is known.
bool tune(
    std::span<const LinearArgs> rotation, std::span<const LinearPart> parts, const CublasKey& key
) REQUIRES(plans().mutex) {
    if (plans().choices.contains(key) || plans().choices.size() >= kChoicesMax) return false;
    Plan& plan = plan_of(key);
    if (!plan.algo) return false;
    plan.algo = fastest(rotation, parts, key, plan);
    plans().choices.emplace(key, *plan.algo);
    return true;
}

}  // namespace

void linear_cublas(const LinearArgs& args) {
    const Products products = products_of(args);
    for (std::size_t i = 0; i < products.num; ++i) multiply(args, products.parts[i]);
}

int tune_linear_cublas(std::span<const LinearArgs> rotation) {
    CHECK(!rotation.empty() && !is_capturing(rotation[0].stream));
    const MutexLock lock(plans().mutex);
    const Products products = products_of(rotation[0]);
    int num_timed = 0;
    for (std::size_t i = 0; i < products.num; ++i) {
        // A layer whose weights are laid out differently has another product, which is not timed
        // here.
        const CublasKey key = key_of(rotation[0], products.parts[i]);
        std::vector<LinearArgs> same;
        std::vector<LinearPart> parts;
        for (const LinearArgs& args : rotation) {
            const Products theirs = products_of(args);
            if (theirs.num != products.num || key_of(args, theirs.parts[i]) != key) continue;
            same.push_back(args);
            parts.push_back(theirs.parts[i]);
        }
        if (tune(same, parts, key)) ++num_timed;
    }
    return num_timed;
}

int load_linear_choices(const std::string& directory) {
    const CudaDeviceInfo device = opened_cuda_device();
    Result<CublasChoices> found = read_choices(choices_path(directory, device), device);
    if (!found) {
        if (found.error().code != ErrorCode::kNotFound) spdlog::warn("{}", found.error().message);
        return 0;
    }
    const MutexLock lock(plans().mutex);
    plans().choices = *std::move(found);
    return static_cast<int>(plans().choices.size());
}

Result<> save_linear_choices(const std::string& directory) {
    const CudaDeviceInfo device = opened_cuda_device();
    const MutexLock lock(plans().mutex);
    return write_choices(choices_path(directory, device), device, plans().choices);
}

}  // namespace pitstop::kernels
