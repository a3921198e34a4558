#include "kernels/digest.h"

#include "base/isa.h"
#include "kernels/cpu/levels.h"
#include "kernels/runtime/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace pitstop::kernels {

static_assert(std::endian::native == std::endian::little);

void check(const DigestArgs& args) {
    CHECK(args.rows >= 0 && args.row_bytes >= 0 && args.sum != nullptr);
    if (args.rows == 0 || args.row_bytes == 0) return;
    CHECK(args.data != nullptr);
    CHECK(args.rows == 1 || args.row_stride_bytes >= args.row_bytes);
    CHECK(args.words_per_row >= digest_words(args.row_bytes));
}

void digest_ref(const DigestArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.rows; ++r) {
        const auto* const bytes =
            static_cast<const std::byte*>(args.data) + r * args.row_stride_bytes;
        for (std::int64_t begin = 0; begin < args.row_bytes; begin += 8) {
            std::uint64_t word = 0;
            std::memcpy(
                &word,
                bytes + begin,
                static_cast<std::size_t>(std::min<std::int64_t>(8, args.row_bytes - begin))
            );
            const std::uint64_t i = args.first_word +
                                    static_cast<std::uint64_t>(r) * args.words_per_row +
                                    static_cast<std::uint64_t>(begin / 8);
            const std::uint64_t h = mix64(word + (i + 1) * kDigestStep);
            if (args.num_nonfinite != nullptr)
                *args.num_nonfinite +=
                    static_cast<std::uint64_t>(std::popcount(digest::nonfinite_bits(word)));
            *args.sum += Digest{.lane0 = h, .lane1 = (h >> 32) * (h & 0xffffffffu)};
        }
    }
}

namespace {

void digest_cpu(const DigestArgs& args, IsaLevel level) {
    check(args);
    const digest::AddRun add_run = digest::add_run_on(level);
    const digest::DigestRows rows =
        digest::DigestRows{
            .data = static_cast<const std::byte*>(args.data),
            .num_rows = args.rows,
            .row_bytes = args.row_bytes,
            .row_stride_bytes = args.row_stride_bytes,
            .first_word = args.first_word,
            .words_per_row = args.words_per_row,
        }
            .joined();
    // A wide row is cut, so that one row uses all threads.
    constexpr std::int64_t kBytesPerCut = 256 << 10;
    const std::int64_t cuts = (rows.row_bytes + kBytesPerCut - 1) / kBytesPerCut;
    if (cuts == 0) return;
    // All threads add to these; integer sums, so the order does not matter.
    std::atomic<std::uint64_t> lane0{0};
    std::atomic<std::uint64_t> lane1{0};
    std::atomic<std::uint64_t> num_nonfinite{0};
    auto add_cuts = [&](std::int64_t begin, std::int64_t end, int) {
        digest::DigestSum sum;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t at = i % cuts * kBytesPerCut;
            add_run(rows.run(i / cuts, at, std::min(kBytesPerCut, rows.row_bytes - at)), sum);
        }
        lane0.fetch_add(sum.digest.lane0, std::memory_order_relaxed);
        lane1.fetch_add(sum.digest.lane1, std::memory_order_relaxed);
        num_nonfinite.fetch_add(sum.num_nonfinite, std::memory_order_relaxed);
    };
    // Cuts into ranges worth waking a thread for: about 5 us.
    constexpr std::int64_t kBytesPerRange = 64 << 10;
    const std::int64_t cut_bytes = std::max<std::int64_t>(1, rows.row_bytes / cuts);
    const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerRange / cut_bytes);
    parallel_for(args.stream, rows.num_rows * cuts, grain, add_cuts);
    *args.sum += Digest{.lane0 = lane0, .lane1 = lane1};
    if (args.num_nonfinite != nullptr) *args.num_nonfinite += num_nonfinite;
}

}  // namespace

namespace scalar {
void digest(const DigestArgs& args) { digest_cpu(args, IsaLevel::kScalar); }
}  // namespace scalar
namespace avx2 {
void digest(const DigestArgs& args) { digest_cpu(args, IsaLevel::kAvx2); }
}  // namespace avx2
namespace avx512 {
void digest(const DigestArgs& args) { digest_cpu(args, IsaLevel::kAvx512); }
}  // namespace avx512
namespace avx512bf16 {
void digest(const DigestArgs& args) { digest_cpu(args, IsaLevel::kAvx512Bf16); }
}  // namespace avx512bf16

}  // namespace pitstop::kernels
