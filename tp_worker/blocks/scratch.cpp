#include "tp_worker/blocks/scratch.h"

#include "base/check.h"
#include "kernels/runtime/thread_pool.h"

#include <algorithm>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 256;  // bytes; GPU workspaces need it

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::string_view name_of(Compute compute) { return compute == Compute::kFp32 ? "fp32" : "bf16"; }

kernels::DType act_dtype(Compute compute) {
    return compute == Compute::kFp32 ? kernels::DType::kF32 : kernels::DType::kBF16;
}

kernels::DType Scratch::product_dtype() const {
    const bool is_bf16 = is_cuda() && args_.compute == Compute::kBf16;
    return is_bf16 ? kernels::DType::kBF16 : kernels::DType::kF32;
}

Scratch::Buffer& Scratch::take(std::string_view name, std::int64_t bytes) {
    const auto [place, is_new] = by_name_.try_emplace(std::string(name), buffers_.size());
    if (is_new) buffers_.emplace_back();
    Buffer& buffer = buffers_[place->second];
    CHECK(!is_placed_ || bytes <= buffer.bytes);
    buffer.bytes = std::max(buffer.bytes, bytes);
    return buffer;
}

std::int64_t Scratch::bytes() const {
    std::int64_t sum = 0;
    for (const Buffer& buffer : buffers_) sum += aligned(buffer.bytes);
    return sum;
}

void Scratch::place(std::byte* memory) {
    for (Buffer& buffer : buffers_) {
        buffer.data = memory;
        memory += aligned(buffer.bytes);
    }
    is_placed_ = true;
}

View2<float> Scratch::floats(std::string_view name, std::int64_t rows, std::int64_t cols) {
    return view2(reinterpret_cast<float*>(take(name, rows * cols * 4).data), rows, cols);
}

kernels::ActView Scratch::acts(
    std::string_view name, kernels::DType dtype, std::int64_t rows, std::int64_t cols
) {
    return {take(name, rows * cols * size_of(dtype)).data, dtype, rows, cols, cols};
}

kernels::Workspace Scratch::workspace(std::string_view name, std::int64_t bytes) {
    return {.data = take(name, bytes).data, .bytes = bytes};
}

void* Scratch::zeros(std::string_view name, std::int64_t bytes) {
    Buffer& buffer = take(name, bytes);
    buffer.is_zero = true;
    return buffer.data;
}

View2<float> Scratch::table(
    std::string_view name, std::int64_t rows, std::int64_t cols, FillRow fill_row
) {
    const View2<float> view = floats(name, rows, cols);
    tables_.insert_or_assign(std::string(name), Table{view, std::move(fill_row)});
    return view;
}

void Scratch::fill() const {
    CHECK(is_placed_);
    for (const auto& [name, table] : tables_) fill(table);
    for (const Buffer& buffer : buffers_) {
        if (buffer.is_zero) args_.device.clear(buffer.data, buffer.bytes);
    }
}

void Scratch::fill(const Table& table) const {
    const std::int64_t num_elements = table.view.rows * table.view.cols;
    std::vector<float> host(static_cast<std::size_t>(is_cuda() ? num_elements : 0));
    View2<float> view = table.view;
    if (is_cuda()) view.data = host.data();
    auto fill_rows = [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
        for (std::int64_t i = begin; i < end; ++i) table.fill_row(i, row(view, i));
    };
    kernels::parallel_for(args_.device.host_stream(), view.rows, /*grain=*/256, fill_rows);
    if (is_cuda()) args_.device.write(table.view.data, view.data, num_elements * 4);
}

}  // namespace pitstop::tp_worker
