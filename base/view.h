// Describes borrowed tensors: a pointer, extents and strides in elements. They are row-major, the
// last dimension contiguous. They own nothing and check nothing: a launcher checks the shape its
// comment states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop {

template <class T>
struct View2 {
    T* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;  // elements between rows

    operator View2<const T>() const { return {data, rows, cols, stride}; }
};

template <class T>
[[nodiscard]] View2<T> view2(T* data, std::int64_t rows, std::int64_t cols) {
    return {data, rows, cols, cols};
}

template <class T>
[[nodiscard]] std::span<T> row(const View2<T>& view, std::int64_t index) {
    return {view.data + index * view.stride, static_cast<std::size_t>(view.cols)};
}

// `num` rows from `begin`.
template <class T>
[[nodiscard]] View2<T> rows(const View2<T>& view, std::int64_t begin, std::int64_t num) {
    return {view.data + begin * view.stride, num, view.cols, view.stride};
}

template <class T>
struct View3 {
    T* data = nullptr;
    std::int64_t dim0 = 0;
    std::int64_t dim1 = 0;
    std::int64_t dim2 = 0;
    std::int64_t stride0 = 0;  // elements between entries of dim0
    std::int64_t stride1 = 0;  // elements between entries of dim1

    operator View3<const T>() const { return {data, dim0, dim1, dim2, stride0, stride1}; }
};

template <class T>
[[nodiscard]] View3<T> view3(T* data, std::int64_t dim0, std::int64_t dim1, std::int64_t dim2) {
    return {data, dim0, dim1, dim2, dim1 * dim2, dim2};
}

}  // namespace pitstop
