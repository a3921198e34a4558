// Element access for the reference implementations: any dtype, through double.
#pragma once

#include "kernels/tensor.h"

#include <limits>

namespace pitstop::kernels {

inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

[[nodiscard]] inline double element(const void* data, DType dtype, std::int64_t index) {
    switch (dtype) {
        case DType::kF32:
            return static_cast<const float*>(data)[index];
        case DType::kF16:
            return to_float(static_cast<const f16*>(data)[index]);
        case DType::kBF16:
            return to_float(static_cast<const bf16*>(data)[index]);
    }
    CHECK(false);
}

inline void put(void* data, DType dtype, std::int64_t index, double value) {
    if (dtype == DType::kF32) {
        static_cast<float*>(data)[index] = static_cast<float>(value);
    } else {
        static_cast<bf16*>(data)[index] = to_bf16(static_cast<float>(value));
    }
}

[[nodiscard]] inline double at(const ConstActView& v, std::int64_t row, std::int64_t col) {
    return element(v.data, v.dtype, row * v.stride + col);
}
inline void put(const ActView& v, std::int64_t row, std::int64_t col, double value) {
    put(v.data, v.dtype, row * v.stride + col, value);
}

// Returns whether an op may read or write a view: a matrix of fp32 or bf16 rows that do not
// overlap.
[[nodiscard]] inline bool is_valid(const ConstActView& v) {
    return v.dtype != DType::kF16 && v.rows >= 0 && v.cols >= 1 &&
           (v.stride >= v.cols || v.rows <= 1) && (v.data != nullptr || v.rows == 0);
}

}  // namespace pitstop::kernels
