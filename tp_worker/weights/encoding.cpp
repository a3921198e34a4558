#include "tp_worker/weights/encoding.h"

#include "base/bf16.h"
#include "base/check.h"

#include <cmath>
#include <cstring>

namespace pitstop::tp_worker {
namespace {

kernels::DType op_dtype(checkpoint::StoredDtype dtype) {
    CHECK(is_accepted(Encoding::kBf16, dtype));
    if (dtype == checkpoint::StoredDtype::kBf16) return kernels::DType::kBF16;
    return dtype == checkpoint::StoredDtype::kF16 ? kernels::DType::kF16 : kernels::DType::kF32;
}

template <class T>
T read(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

float float_of(checkpoint::StoredDtype dtype, const std::byte* at) {
    if (dtype == checkpoint::StoredDtype::kF32) return read<float>(at);
    const auto bits = read<std::uint16_t>(at);
    return dtype == checkpoint::StoredDtype::kF16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

bf16 bf16_of(checkpoint::StoredDtype dtype, const std::byte* at) {
    if (dtype == checkpoint::StoredDtype::kF32) return to_bf16(read<float>(at));
    const auto bits = read<std::uint16_t>(at);
    return dtype == checkpoint::StoredDtype::kF16 ? to_bf16(to_float(f16{bits})) : bf16{bits};
}

}  // namespace

std::string_view name_of(Encoding encoding) {
    return checkpoint::name_of(stored_dtype_of(encoding));
}

bool is_accepted(Encoding, checkpoint::StoredDtype dtype) {
    return dtype == checkpoint::StoredDtype::kBf16 || dtype == checkpoint::StoredDtype::kF16 ||
           dtype == checkpoint::StoredDtype::kF32;
}

std::string_view accepted_dtypes(Encoding) { return "BF16, F16 and F32"; }

checkpoint::StoredDtype stored_dtype_of(Encoding encoding) {
    return encoding == Encoding::kF32 ? checkpoint::StoredDtype::kF32
                                      : checkpoint::StoredDtype::kBf16;
}

void encode(
    Encoding encoding,
    checkpoint::StoredDtype dtype,
    const std::byte* from,
    std::int64_t num,
    std::byte* to
) {
    CHECK(is_accepted(encoding, dtype));
    const std::int64_t stored_bytes = bytes_of(dtype);
    for (std::int64_t i = 0; i < num; ++i) {
        if (encoding == Encoding::kF32) {
            const float value = float_of(dtype, from + i * stored_bytes);
            std::memcpy(to + bytes_of(encoding, i), &value, sizeof value);
            continue;
        }
        const bf16 value = bf16_of(dtype, from + i * stored_bytes);
        std::memcpy(to + bytes_of(encoding, i), &value, sizeof value);
    }
}

bool is_converted_by_ops(Encoding encoding, checkpoint::StoredDtype dtype) {
    return is_accepted(encoding, dtype) &&
           (encoding == Encoding::kBf16 || dtype != checkpoint::StoredDtype::kF16);
}

Result<> check_converted_by_ops(
    std::string_view name, Encoding encoding, checkpoint::StoredDtype dtype
) {
    if (is_converted_by_ops(encoding, dtype)) return Ok{};
    return make_error(
        ErrorCode::kUnsupported,
        "'{}' is {} in a GPU's memory; accepted there are {} and BF16, or any in host memory",
        name,
        checkpoint::name_of(dtype),
        name_of(encoding)
    );
}

std::vector<std::int64_t> halves_at(Encoding encoding, std::span<const std::int64_t> at) {
    const std::int64_t num = num_halves(encoding);
    std::vector<std::int64_t> halves;
    for (const std::int64_t each : at)
        for (std::int64_t half = 0; half < num; ++half) halves.push_back(each * num + half);
    return halves;
}

void add_conversions(
    Encoding encoding, const StoredRectangle& rectangle, std::vector<kernels::ShardCopy>& copies
) {
    CHECK(is_converted_by_ops(encoding, rectangle.dtype));
    kernels::ShardCopy copy{
        .src = rectangle.from,
        .src_dtype = op_dtype(rectangle.dtype),
        .src_stride = rectangle.from_stride,
        .dst =
            {.data = reinterpret_cast<bf16*>(rectangle.to),
             .rows = rectangle.rows,
             .cols = rectangle.cols,
             .stride = rectangle.to_stride},
    };
    const std::int64_t halves = num_halves(encoding);
    if (halves == 1) return copies.push_back(copy);
    copy.src_dtype = kernels::DType::kBF16;
    copy.dst.stride *= halves;
    if (is_stored_as(encoding, rectangle.dtype)) {
        copy.src_stride *= halves;
        copy.dst.cols *= halves;
        return copies.push_back(copy);
    }
    for (std::int64_t row = 0; row < rectangle.rows; ++row) {
        const std::byte* const from =
            rectangle.from + row * rectangle.from_stride * bytes_of(rectangle.dtype);
        copies.push_back({
            .src = from,
            .src_dtype = kernels::DType::kBF16,
            .src_stride = 1,
            .dst =
                {.data = copy.dst.data + row * copy.dst.stride + 1,
                 .rows = rectangle.cols,
                 .cols = 1,
                 .stride = halves},
        });
    }
}

void convert(
    Encoding encoding,
    const StoredRectangle& rectangle,
    const kernels::Ops& ops,
    kernels::Stream stream
) {
    if (encoding == Encoding::kBf16) {
        std::vector<kernels::ShardCopy> copies;
        add_conversions(encoding, rectangle, copies);
        return ops.shard_copy({.copies = copies, .stream = stream});
    }
    const std::int64_t stored_bytes = bytes_of(rectangle.dtype);
    for (std::int64_t row = 0; row < rectangle.rows; ++row) {
        encode(
            encoding,
            rectangle.dtype,
            rectangle.from + row * rectangle.from_stride * stored_bytes,
            rectangle.cols,
            rectangle.to + bytes_of(encoding, row * rectangle.to_stride)
        );
    }
}

kernels::ScatterArgs scatter_of(const std::byte* values, std::byte* shard) {
    return {
        .values = reinterpret_cast<const bf16*>(values), .data = reinterpret_cast<bf16*>(shard)};
}

std::optional<Nonfinite> find_nonfinite(Encoding encoding, std::span<const std::byte> bytes) {
    const std::int64_t num = std::ssize(bytes) / bytes_of(encoding, 1);
    for (std::int64_t i = 0; i < num; ++i) {
        const float value =
            float_of(stored_dtype_of(encoding), bytes.data() + bytes_of(encoding, i));
        if (!std::isfinite(value)) return Nonfinite{.index = i, .value = value};
    }
    return std::nullopt;
}

std::uint64_t count_nonfinite_f32(
    const std::byte* first, std::int64_t rows, std::int64_t cols, std::int64_t stride_bytes
) {
    std::uint64_t num = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::byte* const at = first + row * stride_bytes;
        for (std::int64_t col = 0; col < cols; ++col) {
            if (!std::isfinite(read<float>(at + bytes_of(Encoding::kF32, col)))) ++num;
        }
    }
    return num;
}

}  // namespace pitstop::tp_worker
