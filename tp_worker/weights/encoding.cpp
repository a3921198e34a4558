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

bf16 bf16_of(checkpoint::StoredDtype dtype, const std::byte* at) {
    if (dtype == checkpoint::StoredDtype::kF32) return to_bf16(read<float>(at));
    const auto bits = read<std::uint16_t>(at);
    return dtype == checkpoint::StoredDtype::kF16 ? to_bf16(to_float(f16{bits})) : bf16{bits};
}

}  // namespace

std::string_view name_of(Encoding encoding) {
    return checkpoint::name_of(stored_dtype_of(encoding));
}

bool is_accepted(Encoding encoding, checkpoint::StoredDtype dtype) {
    CHECK(encoding == Encoding::kBf16);
    return dtype == checkpoint::StoredDtype::kBf16 || dtype == checkpoint::StoredDtype::kF16 ||
           dtype == checkpoint::StoredDtype::kF32;
}

std::string_view accepted_dtypes(Encoding encoding) {
    CHECK(encoding == Encoding::kBf16);
    return "BF16, F16 and F32";
}

checkpoint::StoredDtype stored_dtype_of(Encoding encoding) {
    CHECK(encoding == Encoding::kBf16);
    return checkpoint::StoredDtype::kBf16;
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
        const bf16 value = bf16_of(dtype, from + i * stored_bytes);
        std::memcpy(to + bytes_of(encoding, i), &value, sizeof value);
    }
}

kernels::ShardCopy conversion_of(Encoding encoding, const StoredRectangle& rectangle) {
    CHECK(is_accepted(encoding, rectangle.dtype));
    return {
        .src = rectangle.from,
        .src_dtype = op_dtype(rectangle.dtype),
        .src_stride = rectangle.from_stride,
        .dst =
            {.data = reinterpret_cast<bf16*>(rectangle.to),
             .rows = rectangle.rows,
             .cols = rectangle.cols,
             .stride = rectangle.to_stride},
    };
}

kernels::ScatterArgs scatter_of(Encoding encoding, const std::byte* values, std::byte* shard) {
    CHECK(encoding == Encoding::kBf16);
    return {
        .values = reinterpret_cast<const bf16*>(values), .data = reinterpret_cast<bf16*>(shard)};
}

std::optional<Nonfinite> find_nonfinite(Encoding encoding, std::span<const std::byte> bytes) {
    const std::int64_t num = std::ssize(bytes) / bytes_of(encoding, 1);
    for (std::int64_t i = 0; i < num; ++i) {
        const float value = to_float(read<bf16>(bytes.data() + bytes_of(encoding, i)));
        if (!std::isfinite(value)) return Nonfinite{.index = i, .value = value};
    }
    return std::nullopt;
}

}  // namespace pitstop::tp_worker
