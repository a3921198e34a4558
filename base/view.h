// Describes borrowed tensors: a pointer, extents, and strides in elements. Tensors are row-major,
// the last dimension contiguous. Views own nothing and check nothing: a launcher checks the shape
// that its comment states.
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

// Returns `num` rows, starting at `begin`.
template <class T>
[[nodiscard]] View2<T> rows(const View2<T>& view, std::int64_t begin, std::int64_t num) {
    return {view.data + begin * view.stride, num, view.cols, view.stride};
}

}  // namespace pitstop
