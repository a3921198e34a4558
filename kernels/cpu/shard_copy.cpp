#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// Converts one row of `n` elements; src has any alignment.
void convert(const std::byte* src, DType dtype, bf16* dst, std::int64_t n) {
    if (dtype == DType::kBF16) {
        std::memcpy(dst, src, static_cast<std::size_t>(n) * 2);
        return;
    }
    const std::int64_t size = size_of(dtype);
    const auto load16 = [&](const std::byte* p) PITSTOP_INLINE_LAMBDA {
        return dtype == DType::kF32 ? as_f32(load_u32(p)) : load_f16(p);
    };
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(dst + i, load16(src + i * size));
    if (i < n) {
        std::byte tail[kLanes * 4] = {};
        std::memcpy(tail, src + i * size, static_cast<std::size_t>((n - i) * size));
        store(dst + i, load16(tail), n - i);
    }
}

}  // namespace

void shard_copy(const ShardCopyArgs& args) {
    check(args);
    constexpr std::int64_t kColsPerRange = 64
                                           << 10;  // a wide row is cut too: many tensors have one
    for (const ShardCopy* copy = args.copies.data();
         copy != args.copies.data() + args.copies.size();
         ++copy) {
        const std::int64_t cols = copy->dst.cols;
        const std::int64_t cuts = (cols + kColsPerRange - 1) / kColsPerRange;
        const std::int64_t size = size_of(copy->src_dtype);
        auto pieces = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t r = i / cuts;
                const std::int64_t c = i % cuts * kColsPerRange;
                const std::int64_t n = cols - c < kColsPerRange ? cols - c : kColsPerRange;
                const std::byte* const src =
                    static_cast<const std::byte*>(copy->src) + (r * copy->src_stride + c) * size;
                convert(src, copy->src_dtype, copy->dst.data + r * copy->dst.stride + c, n);
            }
        };
        for_ranges(
            args.stream,
            copy->dst.rows * cuts,
            grain_of_bytes(cols / (cuts < 1 ? 1 : cuts) * 4),
            pieces
        );
    }
}

}  // namespace pitstop::kernels::PITSTOP_ISA
