// Shared by the kernel tests: matrices between guard bands, random numbers, comparisons.
//
// Expected and actual are filled with different garbage first, so that unwritten elements cannot
// match. An output's guard bands are checked when it is destroyed: an op that writes outside fails
// its test.
#pragma once

#include "kernels/reference.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace pitstop::kernels::test {

inline constexpr double kEps32 = 0x1p-24;  // half an ulp of fp32, relative
inline constexpr double kEps16 = 0x1p-8;   // half an ulp of bf16, relative

// Bounds the rounding of an output to its dtype.
inline double rounding_of(DType dtype) { return dtype == DType::kF32 ? kEps32 : kEps16; }

template <class T>
T from_double(double x) {
    if constexpr (std::is_same_v<T, bf16>) {
        return to_bf16(static_cast<float>(x));
    } else {
        return static_cast<T>(x);
    }
}

// Holds a matrix with `kGuard` elements of a known pattern before, after and between its rows.
template <class T>
class Matrix {
  public:
    static constexpr std::int64_t kGuard = 40;

    Matrix(std::int64_t rows, std::int64_t cols, unsigned char garbage)
        : rows_(rows),
          cols_(cols),
          stride_(cols + kGuard),
          garbage_(garbage),
          data_(static_cast<std::size_t>(rows * stride_ + kGuard)) {
        std::memset(static_cast<void*>(data_.data()), garbage, data_.size() * sizeof(T));
    }
    ~Matrix() { check_guards(); }
    Matrix(const Matrix&) = default;
    Matrix(Matrix&&) noexcept = default;

    [[nodiscard]] View2<T> view() { return {data_.data() + kGuard, rows_, cols_, stride_}; }
    [[nodiscard]] View2<const T> view() const {
        return {data_.data() + kGuard, rows_, cols_, stride_};
    }
    [[nodiscard]] View2<T> rows(std::int64_t begin, std::int64_t num) {
        return pitstop::rows(view(), begin, num);
    }
    [[nodiscard]] T& operator()(std::int64_t r, std::int64_t c) {
        return view().data[r * stride_ + c];
    }
    [[nodiscard]] const T& operator()(std::int64_t r, std::int64_t c) const {
        return view().data[r * stride_ + c];
    }
    [[nodiscard]] double value(std::int64_t r, std::int64_t c) const {
        return at(ConstActView(view()), r, c);
    }
    [[nodiscard]] std::int64_t num_rows() const { return rows_; }
    [[nodiscard]] std::int64_t num_cols() const { return cols_; }

    // Returns the bytes of one row.
    [[nodiscard]] std::string bits(std::int64_t r) const {
        return {
            reinterpret_cast<const char*>(&(*this)(r, 0)),
            static_cast<std::size_t>(cols_) * sizeof(T)};
    }
    [[nodiscard]] std::string bits() const {
        std::string all;
        for (std::int64_t r = 0; r < rows_; ++r) all += bits(r);
        return all;
    }

  private:
    void check_guards() const {
        const auto* const bytes = reinterpret_cast<const unsigned char*>(data_.data());
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(data_.size()); ++i) {
            const bool is_inside = i >= kGuard && (i - kGuard) % stride_ < cols_;
            if (is_inside) continue;
            for (std::size_t b = 0; b < sizeof(T); ++b) {
                if (bytes[static_cast<std::size_t>(i) * sizeof(T) + b] == garbage_) continue;
                ADD_FAILURE() << "written outside a matrix, at element " << i << " of "
                              << data_.size();
                return;
            }
        }
    }

    std::int64_t rows_, cols_, stride_;
    unsigned char garbage_;
    std::vector<T> data_;
};

template <class T>
Matrix<T> random_matrix(
    std::int64_t rows, std::int64_t cols, unsigned seed, double deviation = 1.0
) {
    Matrix<T> m(rows, cols, 0x7f);
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal(0.0, deviation);
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) m(r, c) = from_double<T>(normal(engine));
    }
    return m;
}

// Returns columns [begin, begin + num) of a matrix.
template <class T>
View2<T> columns(View2<T> view, std::int64_t begin, std::int64_t num) {
    return {view.data + begin, view.rows, num, view.stride};
}

// Records properties of the running test, for tests/gpu/run: the largest error seen, and the
// largest share that an error had of its bound. Both cover all comparisons of the test;
// RecordProperty() alone would keep the last comparison's.
inline void record_error(double error, double share_of_bound) {
    static const testing::TestInfo* test = nullptr;
    static double worst_error = 0.0;
    static double worst_share = 0.0;
    const testing::TestInfo* const now = testing::UnitTest::GetInstance()->current_test_info();
    if (now != test) worst_error = worst_share = 0.0;
    test = now;
    worst_error = std::max(worst_error, error);
    worst_share = std::max(worst_share, share_of_bound);
    testing::Test::RecordProperty("worst_error", fmt::format("{:.3g}", worst_error));
    testing::Test::RecordProperty("worst_error_over_bound", fmt::format("{:.3g}", worst_share));
}

// Expects the largest |actual - expected| / bound, where bound(r, c) is the derived tolerance, to
// be at most 1.
template <class Actual, class Expected, class Bound>
void expect_within(const Actual& actual, const Expected& expected, Bound bound) {
    ASSERT_EQ(actual.num_rows(), expected.num_rows());
    double worst_error = 0.0;
    double worst_share = 0.0;
    for (std::int64_t r = 0; r < expected.num_rows(); ++r) {
        for (std::int64_t c = 0; c < expected.num_cols(); ++c) {
            const double error = std::abs(actual.value(r, c) - expected.value(r, c));
            const double ratio = error / bound(r, c);
            if (error == 0.0) continue;
            ASSERT_TRUE(ratio <= 1.0)
                << "at (" << r << ", " << c << "): " << actual.value(r, c) << " for "
                << expected.value(r, c) << ", " << ratio << " times the bound";
            worst_error = std::max(worst_error, error);
            worst_share = std::max(worst_share, ratio);
        }
    }
    record_error(worst_error, worst_share);
}

}  // namespace pitstop::kernels::test
