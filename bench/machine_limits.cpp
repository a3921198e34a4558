#include "bench/machine_limits.h"

#include "base/time.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pitstop {
namespace {

constexpr int kRepeats = 9;

struct Free {
    void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer allocate(std::int64_t bytes) {
    Buffer buffer(static_cast<char*>(std::aligned_alloc(1 << 21, static_cast<std::size_t>(bytes))));
    CHECK(buffer != nullptr);
    return buffer;
}

template <class F>
double best_seconds(F&& run) {
    double best = 1e30;
    for (int i = 0; i < kRepeats; ++i) {
        const TimePoint begin = Clock::now();
        run();
        best = std::min(best, seconds(Clock::now() - begin));
    }
    return best;
}

// Keeps the compiler from removing the computation of `value`.
template <class T>
void keep(const T& value) {
    asm volatile("" : : "m"(value) : "memory");
}

constexpr std::int64_t kFmaSteps = 1 << 20;

#if defined(__x86_64__)

[[gnu::target("avx512f")]] void read_avx512(const char* data, std::int64_t bytes) {
    __m512i acc[8] = {};
    for (std::int64_t i = 0; i < bytes; i += 512) {
        for (int a = 0; a < 8; ++a)
            acc[a] = _mm512_or_si512(acc[a], _mm512_load_si512(data + i + std::int64_t{a} * 64));
    }
    for (int a = 1; a < 8; ++a) acc[0] = _mm512_or_si512(acc[0], acc[a]);
    const __m512i total = acc[0];
    keep(total);
}

[[gnu::target("avx2")]] void read_avx2(const char* data, std::int64_t bytes) {
    __m256i acc[8] = {};
    for (std::int64_t i = 0; i < bytes; i += 256) {
        for (int a = 0; a < 8; ++a) {
            acc[a] = _mm256_or_si256(
                acc[a],
                _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + std::int64_t{a} * 32))
            );
        }
    }
    for (int a = 1; a < 8; ++a) acc[0] = _mm256_or_si256(acc[0], acc[a]);
    const __m256i total = acc[0];
    keep(total);
}

[[gnu::target("avx2")]] void copy_avx2(char* to, const char* from, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; i += 32) {
        _mm256_stream_si256(
            reinterpret_cast<__m256i*>(to + i),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i))
        );
    }
    _mm_sfence();
}

// Runs enough independent chains to cover the latency of a multiply-add on every current core.
[[gnu::target("avx512f")]] void fma_avx512() {
    __m512 acc[16];
    for (__m512& a : acc) a = _mm512_set1_ps(1.f);
    __m512 x = _mm512_set1_ps(0.5f);
    for (std::int64_t i = 0; i < kFmaSteps; ++i) {
        asm volatile("" : "+v"(x));
        for (__m512& a : acc) a = _mm512_fmadd_ps(a, x, x);
    }
    for (int i = 1; i < 16; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    const __m512 total = acc[0];
    keep(total);
}

[[gnu::target("avx2,fma")]] void fma_avx2() {
    __m256 acc[12];
    for (__m256& a : acc) a = _mm256_set1_ps(1.f);
    __m256 x = _mm256_set1_ps(0.5f);
    for (std::int64_t i = 0; i < kFmaSteps; ++i) {
        asm volatile("" : "+v"(x));
        for (__m256& a : acc) a = _mm256_fmadd_ps(a, x, x);
    }
    for (int i = 1; i < 12; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    const __m256 total = acc[0];
    keep(total);
}

[[gnu::target("avx512f,avx512bf16")]] void bf16_avx512() {
    __m512 acc[16];
    for (__m512& a : acc) a = _mm512_set1_ps(1.f);
    __m512i x = _mm512_set1_epi32(0x3f003f00);
    for (std::int64_t i = 0; i < kFmaSteps; ++i) {
        asm volatile("" : "+v"(x));
        for (__m512& a : acc) a = _mm512_dpbf16_ps(a, __m512bh(x), __m512bh(x));
    }
    for (int i = 1; i < 16; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    const __m512 total = acc[0];
    keep(total);
}

#endif

void fma_scalar() {
    float acc[32];
    for (float& a : acc) a = 1.f;
    for (std::int64_t i = 0; i < kFmaSteps; ++i) {
        for (float& a : acc) a = a * 0.5f + 0.5f;
        asm volatile("" : "+m"(acc[0]));
    }
    keep(acc);
}

void read_scalar(const char* data, std::int64_t bytes) {
    std::uint64_t sum[8] = {};
    for (std::int64_t i = 0; i < bytes; i += 64) {
        std::uint64_t words[8];
        std::memcpy(words, data + i, sizeof words);
        for (int a = 0; a < 8; ++a) sum[a] |= words[a];
    }
    keep(sum);
}

void read(IsaLevel level, const char* data, std::int64_t bytes) {
#if defined(__x86_64__)
    if (level >= IsaLevel::kAvx512) return read_avx512(data, bytes);
    if (level == IsaLevel::kAvx2) return read_avx2(data, bytes);
#endif
    (void)level;
    read_scalar(data, bytes);
}

void copy(IsaLevel level, char* to, const char* from, std::int64_t bytes) {
#if defined(__x86_64__)
    if (level >= IsaLevel::kAvx2) return copy_avx2(to, from, bytes);
#endif
    (void)level;
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Flops of one call.
double multiply_add(IsaLevel level) {
#if defined(__x86_64__)
    if (level >= IsaLevel::kAvx512) {
        fma_avx512();
        return 16.0 * 16.0 * 2.0 * kFmaSteps;
    }
    if (level == IsaLevel::kAvx2) {
        fma_avx2();
        return 12.0 * 8.0 * 2.0 * kFmaSteps;
    }
#endif
    (void)level;
    fma_scalar();
    return 32.0 * 2.0 * kFmaSteps;
}

double multiply_bf16(IsaLevel level) {
#if defined(__x86_64__)
    if (level == IsaLevel::kAvx512Bf16) {
        bf16_avx512();
        return 16.0 * 16.0 * 4.0 * kFmaSteps;
    }
#endif
    return multiply_add(level);
}

}  // namespace

MachineLimits measure_limits(kernels::ThreadPool& pool, IsaLevel level, std::int64_t array_bytes) {
    constexpr std::int64_t kPiece = 1 << 20;
    const std::int64_t num_pieces = std::max<std::int64_t>(1, array_bytes / kPiece);
    const Buffer a = allocate(num_pieces * kPiece);
    const Buffer b = allocate(num_pieces * kPiece);
    const kernels::Stream stream = kernels::stream_of(pool);
    auto touch = [&](std::int64_t begin, std::int64_t end, int) {
        std::memset(a.get() + begin * kPiece, 1, static_cast<std::size_t>((end - begin) * kPiece));
        std::memset(b.get() + begin * kPiece, 2, static_cast<std::size_t>((end - begin) * kPiece));
    };
    kernels::parallel_for(stream, num_pieces, 1, touch);

    const double bytes = static_cast<double>(num_pieces * kPiece);
    auto read_pieces = [&](std::int64_t begin, std::int64_t end, int) {
        read(level, a.get() + begin * kPiece, (end - begin) * kPiece);
    };
    auto copy_pieces = [&](std::int64_t begin, std::int64_t end, int) {
        copy(level, b.get() + begin * kPiece, a.get() + begin * kPiece, (end - begin) * kPiece);
    };
    double flops = 0.0;
    auto fma = [&](std::int64_t, std::int64_t, int thread) {
        const double done = multiply_add(level);
        if (thread == 0) flops = done;
    };
    auto bf16_products = [&](std::int64_t, std::int64_t, int thread) {
        const double done = multiply_bf16(level);
        if (thread == 0) flops = done;
    };
    MachineLimits limits{.num_threads = pool.num_threads()};
    limits.read_gb_s =
        bytes / best_seconds([&] { kernels::parallel_for(stream, num_pieces, 1, read_pieces); }) *
        1e-9;
    limits.copy_gb_s =
        2.0 * bytes /
        best_seconds([&] { kernels::parallel_for(stream, num_pieces, 1, copy_pieces); }) * 1e-9;
    const double threads = pool.num_threads();
    const double fma_seconds =
        best_seconds([&] { kernels::parallel_for(stream, pool.num_threads(), 1, fma); });
    limits.fma_gflop_s = flops * threads / fma_seconds * 1e-9;
    const double bf16_seconds =
        best_seconds([&] { kernels::parallel_for(stream, pool.num_threads(), 1, bf16_products); });
    limits.bf16_gflop_s = flops * threads / bf16_seconds * 1e-9;
    return limits;
}

}  // namespace pitstop
