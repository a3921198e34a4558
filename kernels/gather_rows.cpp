#include "kernels/gather_rows.h"

#include "kernels/reference.h"
#include "kernels/runtime/thread_pool.h"

#include <algorithm>
#include <cstring>

namespace pitstop::kernels {

void check(const GatherRowsArgs& args) {
    CHECK(is_valid(args.x) && is_valid(args.y));
    CHECK(args.x.cols == args.y.cols && args.x.dtype == args.y.dtype);
    CHECK(args.row_index != nullptr || args.y.rows == 0);
}

void gather_rows_ref(const GatherRowsArgs& args) {
    check(args);
    for (std::int64_t i = 0; i < args.y.rows; ++i) {
        for (std::int64_t c = 0; c < args.y.cols; ++c)
            put(args.y, i, c, at(args.x, args.row_index[i], c));
    }
}

void gather_rows_cpu(const GatherRowsArgs& args) {
    check(args);
    constexpr std::int64_t kBytesPerRange = 64 << 10;  // with less it is not worth waking a thread
    const std::int64_t row_bytes = args.x.cols * size_of(args.x.dtype);
    const std::int64_t stride = args.x.stride * size_of(args.x.dtype);
    const std::int64_t y_stride = args.y.stride * size_of(args.y.dtype);
    auto copy_rows = [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::memcpy(
                static_cast<std::byte*>(args.y.data) + i * y_stride,
                static_cast<const std::byte*>(args.x.data) + args.row_index[i] * stride,
                static_cast<std::size_t>(row_bytes)
            );
        }
    };
    parallel_for(
        args.stream, args.y.rows, std::max<std::int64_t>(1, kBytesPerRange / row_bytes), copy_rows
    );
}

}  // namespace pitstop::kernels
