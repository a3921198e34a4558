#include "tp_worker/weights/unpack.h"

#include "base/cut_guard.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// A matrix that a tensor stores by columns, `stride` elements from one column to the next.
struct Columns {
    std::int64_t begin = 0;  // the tensor's element that is the matrix's first
    std::int64_t stride = 0;
    std::int64_t cols = 0;
    std::int64_t element_bytes = 0;

    [[nodiscard]] std::int64_t row_bytes() const { return cols * element_bytes; }
    // Returns the bytes from row 0's element in the first column to the end of the last element of
    // `num_rows` rows in the last column.
    [[nodiscard]] std::int64_t extent(std::int64_t num_rows) const {
        return ((cols - 1) * stride + num_rows) * element_bytes;
    }
};

// Writes rows, row-major. `from`: the rows' elements in the first column. A block of columns stays
// in the cache while its rows are written.
template <std::size_t kElementBytes>
void gather(const Columns& columns, const std::byte* from, std::span<std::byte> out) {
    constexpr std::int64_t kBlock = 32;
    constexpr auto kBytes = static_cast<std::int64_t>(kElementBytes);
    const std::int64_t num_rows = std::ssize(out) / columns.row_bytes();
    for (std::int64_t first = 0; first < columns.cols; first += kBlock) {
        const std::int64_t end = std::min(first + kBlock, columns.cols);
        for (std::int64_t row = 0; row < num_rows; ++row) {
            std::byte* const to = out.data() + row * columns.row_bytes();
            for (std::int64_t col = first; col < end; ++col) {
                const std::byte* const element = from + (col * columns.stride + row) * kBytes;
                std::memcpy(to + col * kBytes, element, kElementBytes);
            }
        }
    }
}

void gather_rows(const Columns& columns, const std::byte* from, std::span<std::byte> out) {
    if (columns.element_bytes == 2) return gather<2>(columns, from, out);
    CHECK(columns.element_bytes == 4);
    gather<4>(columns, from, out);
}

Result<> read_rows(
    const TensorBytes& pack, const Columns& columns, std::int64_t begin, std::span<std::byte> out
) {
    const std::int64_t row = begin / columns.row_bytes();
    const std::int64_t num_rows = std::ssize(out) / columns.row_bytes();
    const std::int64_t first = (columns.begin + row) * columns.element_bytes;
    const auto extent = static_cast<std::size_t>(columns.extent(num_rows));
    if (pack.data == nullptr) {
        std::vector<std::byte> read(extent);
        RETURN_IF_ERROR(pack.read(first, read));
        return gather_rows(columns, read.data(), out), Ok{};
    }
    const std::byte* const from = pack.data + first;
    if (!pack.is_whole) return gather_rows(columns, from, out), Ok{};
    const CutGuard guard({from, extent});
    gather_rows(columns, from, out);
    RETURN_IF_ERROR(pack.is_whole());
    if (!guard.is_cut()) return Ok{};
    return make_error(ErrorCode::kDataLoss, "a tensor was truncated while it was read");
}

TensorBytes transposed_back(const TensorBytes& pack, const Columns& columns) {
    TensorBytes bytes{.dtype = pack.dtype};
    bytes.read = [pack, columns](std::int64_t begin, std::span<std::byte> out) {
        return read_rows(pack, columns, begin, out);
    };
    return bytes;
}

TensorBytes from_byte(const TensorBytes& pack, std::int64_t begin) {
    TensorBytes bytes = pack;
    if (bytes.data != nullptr) bytes.data += begin;
    if (pack.read) {
        bytes.read = [read = pack.read, begin](std::int64_t at, std::span<std::byte> out) {
            return read(begin + at, out);
        };
    }
    return bytes;
}

std::vector<Incoming> ordered(
    const WeightLayout& layout,
    const WeightLayout::Pack& pack,
    const checkpoint::TensorSpec& spec,
    const TensorBytes& bytes,
    const std::shared_ptr<OrderedPacks>& kept
) {
    CHECK(!bytes.is_on_gpu);
    std::int64_t num_elements = 1;
    for (const std::int64_t extent : pack.shape) num_elements *= extent;
    const std::int64_t element_bytes = checkpoint::bytes_of(spec.dtype);
    const auto all =
        std::make_shared<OrderedPack>(bytes, num_elements * element_bytes, element_bytes, kept);
    std::vector<Incoming> weights;
    for (std::size_t i = 0; i < pack.tensors.size(); ++i) {
        const WeightTensor& tensor = layout.tensors()[pack.tensors[i]];
        const Strides& strides = pack.strides[i];
        Incoming& weight = weights.emplace_back();
        weight.spec = {.name = tensor.name, .dtype = spec.dtype, .shape = tensor.shape};
        if (strides.per_col == 1 && strides.per_row == tensor.whole_cols) {  // needs no copy
            weight.bytes = from_byte(bytes, strides.begin * element_bytes);
            continue;
        }
        const std::int64_t begin =
            all->add({.strides = strides, .rows = tensor.whole_rows, .cols = tensor.whole_cols});
        weight.bytes.dtype = bytes.dtype;
        weight.bytes.read = [all, begin](std::int64_t at, std::span<std::byte> out) {
            return all->read(begin + at, out);
        };
    }
    return weights;
}

}  // namespace

std::vector<std::string> scattered_on_gpu(
    const WeightLayout& layout, std::span<const Incoming> tensors
) {
    std::vector<std::string> problems;
    for (const Incoming& incoming : tensors) {
        const WeightLayout::Pack* const pack = layout.find_pack(incoming.spec.name);
        if (!incoming.bytes.is_on_gpu || pack == nullptr) continue;
        if (!pack->strides.empty()) {
            problems.push_back(fmt::format(
                "'{}' contains the matrices of all experts, in a GPU's memory; send it from host "
                "memory, or send each expert's matrix",
                incoming.spec.name
            ));
        }
        if (incoming.spec.shape != pack->transposed_shape) continue;
        problems.push_back(fmt::format(
            "'{}' has shape {}, transposed, in a GPU's memory; accepted there is {}",
            incoming.spec.name,
            checkpoint::text_of(incoming.spec.shape),
            checkpoint::text_of(pack->shape)
        ));
    }
    return problems;
}

// A transposed pack [E, b, a] has E matrices. Rows of the weights are columns of these matrices,
// with one weight beside the other.
std::vector<Incoming> unpacked(
    const WeightLayout& layout,
    const checkpoint::TensorSpec& spec,
    const TensorBytes& bytes,
    const std::shared_ptr<OrderedPacks>& kept
) {
    const WeightLayout::Pack* const pack = layout.find_pack(spec.name);
    std::vector<Incoming> weights;
    if (pack == nullptr) return weights;
    const bool is_transposed = spec.shape == pack->transposed_shape;
    if (pack->shape != spec.shape && !is_transposed) return weights;
    if (!pack->strides.empty()) return ordered(layout, *pack, spec, bytes, kept);
    CHECK(!is_transposed || !bytes.is_on_gpu);
    const std::int64_t element_bytes = checkpoint::bytes_of(spec.dtype);
    const std::int64_t stride = spec.shape.back();
    std::int64_t begin = 0;  // the first element of the weight, in the pack's plain form
    for (const std::size_t index : pack->tensors) {
        const WeightTensor& tensor = layout.tensors()[index];
        Incoming& weight = weights.emplace_back();
        weight.spec = {.name = tensor.name, .dtype = spec.dtype, .shape = tensor.shape};
        if (is_transposed) {
            const std::int64_t matrix = stride * tensor.whole_cols;  // elements
            weight.bytes = transposed_back(
                bytes,
                {.begin = begin / matrix * matrix + begin % matrix / tensor.whole_cols,
                 .stride = stride,
                 .cols = tensor.whole_cols,
                 .element_bytes = element_bytes}
            );
        } else {
            weight.bytes = from_byte(bytes, begin * element_bytes);
        }
        begin += tensor.whole_rows * tensor.whole_cols;
    }
    return weights;
}

std::vector<Incoming> unpacked(const WeightLayout& layout, std::span<const Incoming> tensors) {
    const auto kept = std::make_shared<OrderedPacks>();
    std::vector<Incoming> apart;
    for (const Incoming& incoming : tensors) {
        std::vector<Incoming> weights = unpacked(layout, incoming.spec, incoming.bytes, kept);
        if (weights.empty()) apart.push_back(incoming);
        std::ranges::move(weights, std::back_inserter(apart));
    }
    return apart;
}

}  // namespace pitstop::tp_worker
