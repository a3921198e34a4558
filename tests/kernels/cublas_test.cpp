// Tests linear_cublas() and its use of cuBLASLt's answers: which algorithm is timed, chosen, kept
// in a file, replaced, or not available. Runs on the GPU in software, whose library gives the
// answers that a test chooses (tests/emulated_gpu/products.h).
#include "kernels/cublas_choices.h"
#include "kernels/linear_tuning.h"
#include "tests/emulated_gpu/products.h"
#include "tests/kernels/cuda_support.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace pitstop::kernels::test {
namespace {

using emulator::products;
using Algorithms = std::vector<std::uint64_t>;

// A chain of K / 16 mma errs by e of the magnitudes per rounding, or by 2 e if tensor cores
// truncate. Bias and y add a rounding each. Then both results are rounded to the output's dtype.
double cublas_bound(double sum_magnitudes, double y, std::int64_t K, DType out) {
    const double roundings = static_cast<double>(K) / 16.0 + 16.0 + 4.0;
    return 2.0 * roundings * kEps32 * sum_magnitudes + 2.02 * rounding_of(out) * std::abs(y);
}

// Holds x, a weight and y on the GPU, and the call that multiplies them.
template <class Y>
class Call {
  public:
    Call(std::int64_t M, std::int64_t N, std::int64_t K, bool has_bias, Place place)
        : x_(random_matrix<bf16>(M, K, 1)),
          w_(random_matrix<bf16>(N, K, 2)),
          bias_(random_matrix<bf16>(1, N, 3)),
          y_(random_matrix<Y>(M, N, 4)),
          device_x_(x_, place),
          device_w_(w_, place),
          device_bias_(bias_, place),
          device_y_(y_, place),
          part_{
              .w = device_w_.view(),
              .bias = has_bias ? device_bias_.view().data : nullptr,
              .y = device_y_.view()},
          stream_(place.stream) {}

    [[nodiscard]] LinearArgs args(LinearMode mode = LinearMode::kWrite) const {
        return {.x = device_x_.view(), .parts = {&part_, 1}, .mode = mode, .stream = stream_};
    }

    void expect_reference(LinearMode mode) {
        Matrix<Y> expected = random_matrix<Y>(y_.view().rows, y_.view().cols, 4);
        const LinearPart part{
            .w = w_.view(),
            .bias = part_.bias != nullptr ? &bias_(0, 0) : nullptr,
            .y = expected.view()};
        linear_ref({.x = x_.view(), .parts = {&part, 1}, .mode = mode});
        device_y_.fetch(y_);
        expect_within(y_, expected, [&](std::int64_t m, std::int64_t n) {
            double magnitudes = 2.0;
            for (std::int64_t k = 0; k < x_.view().cols; ++k)
                magnitudes += std::abs(x_.value(m, k) * w_.value(n, k));
            return cublas_bound(magnitudes, expected.value(m, n), x_.view().cols, kDTypeOf<Y>);
        });
    }

  private:
    Matrix<bf16> x_, w_, bias_;
    Matrix<Y> y_;
    PlacedMatrix<bf16> device_x_, device_w_, device_bias_;
    PlacedMatrix<Y> device_y_;
    LinearPart part_;
    Stream stream_;
};

class Cublas : public OnCuda {
  protected:
    // Plans and choices live as long as the process: each test has shapes of its own.
    void SetUp() override {
        OnCuda::SetUp();
        static std::int64_t shapes_so_far = 0;
        products() = emulator::Products{.ms = {3e6, 1e6, 2e6}};
        K = 16 + 8 * ++shapes_so_far;
    }

    template <class Y>
    void expect_reference(std::int64_t M, LinearMode mode, bool has_bias) {
        SCOPED_TRACE(testing::Message() << "M " << M << " bias " << has_bias);
        Call<Y> call(M, kN, K, has_bias, place());
        linear_cuda(call.args(mode));
        call.expect_reference(mode);
    }
    void multiply(std::int64_t M) { expect_reference<float>(M, LinearMode::kWrite, false); }
    // Tunes over two layers' weights.
    int tune(std::int64_t M) {
        const Call<float> first(M, kN, K, false, place());
        const Call<float> second(M, kN, K, false, place());
        const std::vector<LinearArgs> rotation{first.args(), second.args()};
        const int num = tune_linear_cuda(rotation);
        stream_.wait();
        return num;
    }
    [[nodiscard]] static Algorithms used() { return std::exchange(products().used, {}); }

    static constexpr std::int64_t kN = 24;
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
    EXPECT_EQ(products().used.size(), 18u);
}

TEST_F(Cublas, MultipliesFewRowsWhereWeightsAreLarge) {
    constexpr std::int64_t kBytes = std::int64_t{16} << 20;
    const std::int64_t N = kBytes / (K * std::int64_t{sizeof(bf16)});
    const auto num_used = [&](std::int64_t M, std::int64_t num_weight_rows) {
        const Call<float> call(M, num_weight_rows, K, false, place());
        linear_cuda(call.args());
        stream_.wait();
        return used().size();
    };
    EXPECT_EQ(num_used(5, N), 0u);
    EXPECT_EQ(num_used(4, N + 1), 0u);
    EXPECT_EQ(num_used(5, N + 1), 1u);
}

TEST_F(Cublas, NoStepTimesAnything) {
    multiply(20);
    multiply(20);
    EXPECT_EQ(used(), (Algorithms{0, 0}));  // the library's first guess
}

TEST_F(Cublas, TheFastestOfItsGuessesIsChosenAtStartUp) {
    EXPECT_EQ(tune(32), 1);
    (void)used();
    multiply(20);
    multiply(30);  // 30 is in the same range of M
    EXPECT_EQ(used(), (Algorithms{1, 1}));
    const int num_heuristics = products().num_heuristics;
    EXPECT_EQ(tune(32), 0);
    EXPECT_EQ(tune(25), 0);  // the same range, which has its choice
    EXPECT_EQ(products().num_heuristics, num_heuristics);
    multiply(33);
    EXPECT_EQ(used(), (Algorithms{0}));
}

// An algorithm that was used before it is timed is replaced all the same.
TEST_F(Cublas, AProductThatRanBeforeIsChosenAgain) {
    multiply(20);
    EXPECT_EQ(tune(32), 1);
    (void)used();
    multiply(20);
    EXPECT_EQ(used(), (Algorithms{1}));
}

TEST_F(Cublas, ProductsOfOtherKernelsAreNotTimed) {
    EXPECT_EQ(tune(16), 0);
    EXPECT_EQ(products().num_heuristics, 0);
}

TEST_F(Cublas, AGuessThatIsRefusedIsNotChosen) {
    products().cols_refused = 32;
    products().algorithms_that_refuse = {1};
    EXPECT_EQ(tune(32), 1);
    (void)used();
    multiply(32);
    EXPECT_EQ(used(), (Algorithms{2}));
}

// The algorithm is chosen for M = 32 and refused for 30: that M gets a plan of its own.
TEST_F(Cublas, AnAlgorithmThatRefusesAnMIsReplacedForIt) {
    EXPECT_EQ(tune(32), 1);
    products().cols_refused = 30;
    products().algorithms_that_refuse = {1};
    (void)used();
    multiply(30);
    EXPECT_EQ(used(), (Algorithms{0}));
    multiply(20);
    EXPECT_EQ(used(), (Algorithms{1}));
}

TEST_F(Cublas, ProductsThatTheLibraryRefusesAreMultipliedWithoutIt) {
    products().cols_refused = 30;
    products().algorithms_that_refuse = {0, 1, 2};
    for (const bool has_bias : {false, true}) {
        expect_reference<float>(30, LinearMode::kWrite, has_bias);
        expect_reference<float>(30, LinearMode::kAdd, has_bias);
        expect_reference<bf16>(30, LinearMode::kWrite, has_bias);
    }
    EXPECT_EQ(used(), Algorithms{});
    products().has_guesses = false;
    multiply(50);
    EXPECT_EQ(tune(50), 0);
    EXPECT_EQ(used(), Algorithms{});
}

// The parts q, k and v lie back to back, as do their outputs.
TEST_F(Cublas, NeighbouringPartsAreOneProduct) {
    const Call<float> whole(20, kN, K, false, place());
    const LinearArgs args = whole.args();
    const LinearPart& all = args.parts[0];
    const std::vector<LinearPart> parts{
        {.w = rows(all.w, 0, 16), .y = cols(all.y, 0, 16)},
        {.w = rows(all.w, 16, 8), .y = cols(all.y, 16, 8)}};
    LinearArgs two = args;
    two.parts = parts;
    linear_cuda(two);
    stream_.wait();
    EXPECT_EQ(used().size(), 1u);
}

// ---- the file ----

class LinearChoices : public Cublas {
  protected:
    void SetUp() override {
        Cublas::SetUp();
        std::string name = std::filesystem::temp_directory_path() / "pitstop-choices-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory = name + "/made/by/the/first";
        root = name;
    }
    void TearDown() override { std::filesystem::remove_all(root); }
    [[nodiscard]] std::string path() const { return choices_path(directory, opened_cuda_device()); }
    [[nodiscard]] std::string content() const {
        std::ostringstream text;
        text << std::ifstream(path()).rdbuf();
        return text.str();
    }
    void expect_damaged(const std::string& text) {
        std::ofstream(path(), std::ios::binary) << text;
        EXPECT_FALSE(read_choices(path(), opened_cuda_device()).has_value()) << text;
    }

    std::string root{};
    std::string directory{};
};

TEST_F(LinearChoices, AreThereAtTheNextStart) {
    EXPECT_EQ(load_linear_choices(directory), 0);
    EXPECT_EQ(tune(32), 1);
    ASSERT_TRUE(save_linear_choices(directory).has_value());
    const auto read = read_choices(path(), opened_cuda_device());
    ASSERT_TRUE(read.has_value()) << read.error().message;
    int num_found = 0;
    for (const auto& [key, algo] : *read) {
        if (key.K == K && key.N == kN && key.bucket == 32) {
            ++num_found;
            EXPECT_EQ(algo.data[0], 1u);
        }
    }
    EXPECT_EQ(num_found, 1);
    EXPECT_EQ(load_linear_choices(directory), static_cast<int>(read->size()));
    EXPECT_EQ(tune(32), 0);
}

TEST_F(LinearChoices, AreOfOneGpuDriverAndLibrary) {
    EXPECT_EQ(tune(32), 1);
    ASSERT_TRUE(save_linear_choices(directory).has_value());
    const CudaDeviceInfo here = opened_cuda_device();
    for (int which = 0; which < 3; ++which) {
        CudaDeviceInfo other = here;
        if (which == 0) other.name += " NVL";
        if (which == 1) other.driver_version += 10;
        if (which == 2) other.cublas_lt_version += 1;
        EXPECT_NE(choices_path(directory, other), path());
        EXPECT_FALSE(read_choices(path(), other).has_value());
    }
}

TEST_F(LinearChoices, ADamagedFileHoldsNone) {
    EXPECT_EQ(tune(32), 1);
    ASSERT_TRUE(save_linear_choices(directory).has_value());
    const std::string whole = content();
    expect_damaged("");
    for (std::size_t cut = 1; cut < whole.size(); cut += 7)
        expect_damaged(whole.substr(0, whole.size() - cut));
    for (std::size_t at = 0; at < whole.size(); at += 5) {
        std::string wrong = whole;
        wrong[at] = static_cast<char>(wrong[at] ^ 1);
        expect_damaged(wrong);
    }
    std::ofstream(path(), std::ios::binary) << whole;
    EXPECT_GT(load_linear_choices(directory), 0);
}

TEST_F(LinearChoices, ThatCannotBeWrittenAreReported) {
    std::ofstream(root + "/made") << "a file in the way";
    const Result<> saved = save_linear_choices(directory);
    ASSERT_FALSE(saved.has_value());
    EXPECT_NE(saved.error().message.find(directory), std::string::npos);
}

}  // namespace
}  // namespace pitstop::kernels::test
