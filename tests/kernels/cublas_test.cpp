// linear_cublas() against a stand-in for cuBLASLt that multiplies on the host as the library's
// documentation says: column-major layouts, transposed operands, an epilogue's bias. Needs the
// library's header, but neither it nor a GPU: the few functions of the device that linear_cublas()
// calls are here too, with a clock of their own.
// Source: cuBLAS documentation, "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic".
#include "kernels/cublas_lt.h"
#include "kernels/cuda_device.h"
#include "kernels/device_memory.h"
#include "kernels/linear_cuda.h"
#include "tests/kernels/support.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace pitstop {
namespace {

struct Desc {
    std::array<cublasOperation_t, 2> ops{CUBLAS_OP_N, CUBLAS_OP_N};  // of A and B
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const bf16* bias = nullptr;
};
struct Layout {
    cudaDataType type = CUDA_R_32F;
    std::uint64_t rows = 0;
    std::uint64_t cols = 0;
    std::int64_t ld = 0;
};

// What the library was asked, and how it behaves.
struct Library {
    std::vector<double> ms{};              // of a product by guess 0, 1, ...: how many there are
    std::uint64_t cols_refused = 0;        // products of so many columns are not supported ...
    std::uint64_t guess_that_refuses = 0;  // ... by this guess
    bool is_capturing = false;
    int num_heuristics = 0;
    std::vector<std::uint64_t> used{};  // the guess that each product was made by
    double clock_ms = 0.0;
    std::vector<std::unique_ptr<Desc>> descs{};
    std::vector<std::unique_ptr<Layout>> layouts{};
};
Library library;

template <class T>
T read(const void* value, std::size_t bytes) {
    CHECK(bytes == sizeof(T));
    T read{};
    std::memcpy(&read, value, sizeof read);
    return read;
}
template <class T>
T* as(const void* handle) {
    return static_cast<T*>(const_cast<void*>(handle));
}

double element(const void* data, const Layout& layout, std::uint64_t row, std::uint64_t col) {
    CHECK(row < layout.rows && col < layout.cols);
    const auto index = static_cast<std::int64_t>(row) + static_cast<std::int64_t>(col) * layout.ld;
    return layout.type == CUDA_R_32F ? double{static_cast<const float*>(data)[index]}
                                     : double{to_float(static_cast<const bf16*>(data)[index])};
}

cublasStatus_t desc_create(cublasLtMatmulDesc_t* made, cublasComputeType_t type, cudaDataType) {
    CHECK(type == CUBLAS_COMPUTE_32F);
    library.descs.push_back(std::make_unique<Desc>());
    *made = reinterpret_cast<cublasLtMatmulDesc_t>(library.descs.back().get());
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_set(
    cublasLtMatmulDesc_t handle,
    cublasLtMatmulDescAttributes_t what,
    const void* value,
    std::size_t bytes
) {
    Desc& desc = *as<Desc>(handle);
    if (what == CUBLASLT_MATMUL_DESC_TRANSA) desc.ops[0] = read<cublasOperation_t>(value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_TRANSB) desc.ops[1] = read<cublasOperation_t>(value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE)
        desc.epilogue = read<cublasLtEpilogue_t>(value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER) desc.bias = read<const bf16*>(value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t layout_create(
    cublasLtMatrixLayout_t* made,
    cudaDataType type,
    std::uint64_t rows,
    std::uint64_t cols,
    std::int64_t ld
) {
    CHECK(ld >= static_cast<std::int64_t>(rows));
    library.layouts.push_back(std::make_unique<Layout>(Layout{type, rows, cols, ld}));
    *made = reinterpret_cast<cublasLtMatrixLayout_t>(library.layouts.back().get());
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t layout_set(
    cublasLtMatrixLayout_t layout,
    cublasLtMatrixLayoutAttribute_t what,
    const void* value,
    std::size_t bytes
) {
    CHECK(what == CUBLASLT_MATRIX_LAYOUT_COLS);
    as<Layout>(layout)->cols = read<std::uint64_t>(value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_create(cublasLtMatmulPreference_t* made) {
    *made = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_set(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, std::size_t
) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_destroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t get_heuristic(
    cublasLtHandle_t,
    cublasLtMatmulDesc_t,
    cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t,
    cublasLtMatmulPreference_t,
    int num_wanted,
    cublasLtMatmulHeuristicResult_t results[],
    int* num_found
) {
    ++library.num_heuristics;
    *num_found = std::min(num_wanted, static_cast<int>(library.ms.size()));
    for (int i = 0; i < *num_found; ++i) {
        results[i].algo.data[0] = static_cast<std::uint64_t>(i);
        results[i].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// D = alpha op(A) op(B) + beta C, with a bias for each row of D in the epilogue.
cublasStatus_t matmul(
    cublasLtHandle_t,
    cublasLtMatmulDesc_t desc_handle,
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
    void*,
    std::size_t,
    cudaStream_t
) {
    const Desc& desc = *as<Desc>(desc_handle);
    const Layout &A = *as<Layout>(a_layout), &B = *as<Layout>(b_layout), &D = *as<Layout>(d_layout);
    const std::uint64_t guess = algo->data[0];
    if (D.cols == library.cols_refused && guess == library.guess_that_refuses)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    CHECK(c == d && D.cols == B.cols && desc.ops[1] == CUBLAS_OP_N);
    library.used.push_back(guess);
    library.clock_ms += library.ms.at(guess);
    const bool transposes = desc.ops[0] == CUBLAS_OP_T;
    for (std::uint64_t col = 0; col < D.cols; ++col) {
        for (std::uint64_t row = 0; row < D.rows; ++row) {
            double sum = 0.0;
            for (std::uint64_t k = 0; k < B.rows; ++k) {
                sum += element(a, A, transposes ? k : row, transposes ? row : k) *
                       element(b, B, k, col);
            }
            sum *= double{*static_cast<const float*>(alpha)};
            const double before = double{*static_cast<const float*>(beta)};
            if (before != 0.0) sum += before * element(c, D, row, col);
            if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += double{to_float(desc.bias[row])};
            const auto index =
                static_cast<std::int64_t>(row) + static_cast<std::int64_t>(col) * D.ld;
            if (D.type == CUDA_R_32F) {
                static_cast<float*>(d)[index] = static_cast<float>(sum);
            } else {
                static_cast<bf16*>(d)[index] = to_bf16(static_cast<float>(sum));
            }
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// ---- what kernels/cublas_lt.cpp, cuda_device.cpp, device_memory_cuda.cpp and linear.cu have ----
// ----

const CublasLt& cublas_lt() {
    static const CublasLt lt{
        .matmul = matmul,
        .desc_create = desc_create,
        .desc_set = desc_set,
        .layout_create = layout_create,
        .layout_set = layout_set,
        .preference_create = preference_create,
        .preference_set = preference_set,
        .preference_destroy = preference_destroy,
        .get_heuristic = get_heuristic,
    };
    return lt;
}
void end_by_cuda_failure(const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
    std::abort();
}
bool is_capturing(Stream) { return library.is_capturing; }
Result<DeviceEvent> DeviceEvent::create() {
    DeviceEvent event;
    event.handle_ = new double(0.0);
    return event;
}
DeviceEvent::~DeviceEvent() { delete static_cast<double*>(handle_); }
void DeviceEvent::record(Stream) const { *static_cast<double*>(handle_) = library.clock_ms; }
void DeviceEvent::wait(Duration, std::string_view) const { CHECK(!library.is_capturing); }
double DeviceEvent::ms_since(const DeviceEvent& begin) const {
    return *static_cast<double*>(handle_) - *static_cast<double*>(begin.handle_);
}
void add_bias_cuda(View2<float> y, const bf16* bias, Stream) {
    for (std::int64_t m = 0; m < y.rows; ++m) {
        for (std::int64_t n = 0; n < y.cols; ++n) y.data[m * y.stride + n] += to_float(bias[n]);
    }
}

namespace test {
namespace {

class Cublas : public testing::Test {
  protected:
    // Plans live as long as the process: each test has shapes of its own.
    void SetUp() override {
        static std::int64_t shapes_so_far = 0;
        library = Library{.ms = {3.0, 1.0, 2.0}};
        K = 16 + 8 * ++shapes_so_far;
    }

    template <class Y>
    void expect_reference(std::int64_t M, LinearMode mode, bool has_bias) {
        SCOPED_TRACE(testing::Message() << "M " << M << " bias " << has_bias);
        const std::int64_t N = 24;
        const Matrix<bf16> x = random_matrix<bf16>(M, K, 1);
        const Matrix<bf16> w = random_matrix<bf16>(N, K, 2);
        const Matrix<bf16> bias = random_matrix<bf16>(1, N, 3);
        Matrix<Y> expected = random_matrix<Y>(M, N, 4), actual = random_matrix<Y>(M, N, 4);
        LinearPart part{
            .w = w.view(), .bias = has_bias ? &bias(0, 0) : nullptr, .y = expected.view()};
        linear_ref({.x = x.view(), .parts = {&part, 1}, .mode = mode});
        part.y = actual.view();
        linear_cublas({.x = x.view(), .parts = {&part, 1}, .mode = mode, .stream = {&library}});
        expect_within(actual, expected, [&](std::int64_t m, std::int64_t n) {
            return 4.0 * rounding_of(kDTypeOf<Y>) * std::abs(expected.value(m, n)) + 1e-6;
        });
    }
    void multiply(std::int64_t M) { expect_reference<float>(M, LinearMode::kWrite, false); }

    std::int64_t K = 0;
};

TEST_F(Cublas, IsToldWhereTheMatricesLie) {
    for (const std::int64_t M : {17, 40, 70}) {
        for (const bool has_bias : {false, true}) {
            expect_reference<float>(M, LinearMode::kWrite, has_bias);
            expect_reference<float>(M, LinearMode::kAdd, has_bias);
            expect_reference<bf16>(M, LinearMode::kWrite, has_bias);
        }
    }
}

TEST_F(Cublas, TheFastestOfItsGuessesIsKept) {
    multiply(20);
    EXPECT_EQ(library.num_heuristics, 1);
    EXPECT_EQ(library.used.back(), 1u);
    library.used.clear();
    multiply(20);
    multiply(30);  // the same step of M
    EXPECT_EQ(library.used, (std::vector<std::uint64_t>{1, 1}));
    EXPECT_EQ(library.num_heuristics, 1);
    multiply(33);
    EXPECT_EQ(library.num_heuristics, 2);
}

TEST_F(Cublas, WhatIsAddedToIsNotTimed) {
    expect_reference<float>(20, LinearMode::kAdd, false);
    EXPECT_EQ(library.used, (std::vector<std::uint64_t>{0}));
    library.used.clear();
    multiply(20);
    EXPECT_EQ(library.used.back(), 1u);  // the first that could be
}

TEST_F(Cublas, ACapturedGraphWaitsForNothing) {
    library.is_capturing = true;
    multiply(20);
    EXPECT_EQ(library.used, (std::vector<std::uint64_t>{0}));
}

TEST_F(Cublas, AGuessThatIsRefusedIsNotKept) {
    library.cols_refused = 20;
    library.guess_that_refuses = 1;
    multiply(20);
    EXPECT_EQ(library.used.back(), 2u);
}

// Chosen for M = 20, refused for 30: that M gets a plan of its own.
TEST_F(Cublas, AnAlgorithmThatRefusesAnMIsReplacedForIt) {
    multiply(20);
    library.cols_refused = 30;
    library.guess_that_refuses = 1;
    library.used.clear();
    multiply(30);
    EXPECT_EQ(library.used, (std::vector<std::uint64_t>{0}));
    multiply(20);
    EXPECT_EQ(library.used.back(), 1u);
}

// q, k and v that lie back to back, as do their outputs.
TEST_F(Cublas, NeighbouringPartsAreOneProduct) {
    const std::int64_t M = 20;
    const std::vector<bf16> w(static_cast<std::size_t>(24 * K), to_bf16(1.f));
    const Matrix<bf16> x = random_matrix<bf16>(M, K, 1);
    Matrix<float> y(M, 24, 0x11);
    const View2<const bf16> all{w.data(), 24, K, K};
    const std::vector<LinearPart> parts{
        {.w = rows(all, 0, 16), .y = cols(ActView(y.view()), 0, 16)},
        {.w = rows(all, 16, 8), .y = cols(ActView(y.view()), 16, 8)}};
    library.ms = {1.0};
    linear_cublas({.x = x.view(), .parts = parts, .stream = {&library}});
    EXPECT_EQ(library.used.size(), 1u);
    for (std::int64_t m = 0; m < M; ++m) {
        for (std::int64_t n = 1; n < 24; ++n) EXPECT_EQ(y(m, n), y(m, 0));
    }
}

}  // namespace
}  // namespace test
}  // namespace pitstop
