// The members of every op's Args: element types, matrices whose element type is chosen at run time,
// the scratch memory an op may use, and its stream (runtime/stream.h).
#pragma once

#include "base/bf16.h"
#include "base/check.h"
#include "base/view.h"
#include "kernels/runtime/stream.h"

#include <cstddef>
#include <cstdint>

namespace pitstop::kernels {

enum class DType : std::uint8_t { kF32, kF16, kBF16 };  // kF16: checkpoints only (shard_copy.h)

[[nodiscard]] constexpr std::int64_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBF16;

// A view of activations: a View2 that is fp32 (in truth mode, and everywhere in the residual
// stream) or bf16 (rounded on the way into a matrix product). Each op states which it accepts.
struct ActView {
    void* data = nullptr;
    DType dtype = DType::kF32;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;  // elements between rows

    ActView() = default;
    ActView(
        void* data_in,
        DType dtype_in,
        std::int64_t rows_in,
        std::int64_t cols_in,
        std::int64_t stride_in
    )
        : data(data_in), dtype(dtype_in), rows(rows_in), cols(cols_in), stride(stride_in) {}
    template <class T>
    ActView(View2<T> v) : ActView(v.data, kDTypeOf<T>, v.rows, v.cols, v.stride) {}
};

struct ConstActView {
    const void* data = nullptr;
    DType dtype = DType::kF32;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;  // elements between rows

    ConstActView() = default;
    ConstActView(
        const void* data_in,
        DType dtype_in,
        std::int64_t rows_in,
        std::int64_t cols_in,
        std::int64_t stride_in
    )
        : data(data_in), dtype(dtype_in), rows(rows_in), cols(cols_in), stride(stride_in) {}
    ConstActView(ActView v) : ConstActView(v.data, v.dtype, v.rows, v.cols, v.stride) {}
    ConstActView(View2<float> v) : ConstActView(v.data, DType::kF32, v.rows, v.cols, v.stride) {}
    ConstActView(View2<const float> v)
        : ConstActView(v.data, DType::kF32, v.rows, v.cols, v.stride) {}
    ConstActView(View2<bf16> v) : ConstActView(v.data, DType::kBF16, v.rows, v.cols, v.stride) {}
    ConstActView(View2<const bf16> v)
        : ConstActView(v.data, DType::kBF16, v.rows, v.cols, v.stride) {}
};

// Returns `num` columns from `begin`: q, k and v are column ranges of one fused output.
[[nodiscard]] inline ActView cols(const ActView& v, std::int64_t begin, std::int64_t num) {
    return {
        static_cast<std::byte*>(v.data) + begin * size_of(v.dtype), v.dtype, v.rows, num, v.stride};
}
[[nodiscard]] inline ActView rows(const ActView& v, std::int64_t begin, std::int64_t num) {
    return {
        static_cast<std::byte*>(v.data) + begin * v.stride * size_of(v.dtype),
        v.dtype,
        num,
        v.cols,
        v.stride};
}
[[nodiscard]] inline ConstActView cols(
    const ConstActView& v, std::int64_t begin, std::int64_t num
) {
    return {
        static_cast<const std::byte*>(v.data) + begin * size_of(v.dtype),
        v.dtype,
        v.rows,
        num,
        v.stride};
}
[[nodiscard]] inline ConstActView rows(
    const ConstActView& v, std::int64_t begin, std::int64_t num
) {
    return {
        static_cast<const std::byte*>(v.data) + begin * v.stride * size_of(v.dtype),
        v.dtype,
        num,
        v.cols,
        v.stride};
}

// Scratch memory of the caller's, 64-byte aligned (256 on CUDA), contents undefined before and
// after. An op never allocates; `<op>_workspace_bytes` returns how much it can use.
struct Workspace {
    void* data = nullptr;
    std::int64_t bytes = 0;
};

}  // namespace pitstop::kernels
