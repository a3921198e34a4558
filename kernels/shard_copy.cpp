#include "kernels/shard_copy.h"

#include "kernels/reference.h"

#include <cstring>

namespace pitstop::kernels {

void check(const ShardCopyArgs& args) {
    for (const ShardCopy& copy : args.copies) {
        const View2<bf16>& dst = copy.dst;
        CHECK(dst.rows >= 0 && dst.cols >= 0);
        if (dst.rows == 0 || dst.cols == 0) continue;
        CHECK(copy.src != nullptr && dst.data != nullptr);
        CHECK(dst.rows == 1 || (dst.stride >= dst.cols && copy.src_stride >= dst.cols));
    }
}

void shard_copy_ref(const ShardCopyArgs& args) {
    check(args);
    for (const ShardCopy& copy : args.copies) {
        for (std::int64_t r = 0; r < copy.dst.rows; ++r) {
            for (std::int64_t c = 0; c < copy.dst.cols; ++c) {
                bf16& dst = copy.dst.data[r * copy.dst.stride + c];
                const std::int64_t index = r * copy.src_stride + c;
                const auto* const src =
                    static_cast<const std::byte*>(copy.src) + index * size_of(copy.src_dtype);
                float f32 = 0.f;
                f16 half{};
                switch (copy.src_dtype) {
                    case DType::kF32:
                        std::memcpy(&f32, src, sizeof f32);
                        dst = to_bf16(f32);
                        break;
                    case DType::kF16:
                        std::memcpy(&half, src, sizeof half);
                        dst = to_bf16(to_float(half));
                        break;
                    case DType::kBF16:
                        std::memcpy(&dst, src, sizeof dst);
                        break;
                }
            }
        }
    }
}

}  // namespace pitstop::kernels
