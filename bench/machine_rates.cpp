#include "bench/machine_rates.h"

#include "base/time.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pitstop::bench {
namespace {

constexpr int kPasses = 5;
constexpr std::chrono::milliseconds kPassTime{60};
constexpr int kChains = 12;  // independent sums: covers a latency of 4 to 6 with 2 units
constexpr std::int64_t kProductsPerCall = 20'000;

// Keeps a result alive without writing it anywhere.
template <class T>
void keep(const T& value) {
    asm volatile("" : : "g"(&value) : "memory");
}

// Runs work(thread), which returns the units of work it did, on all threads again and again until a
// pass has lasted long enough. The units per second of the best pass.
template <class Work>
double best_rate(int threads, const Work& work) {
    double best = 0;
    std::atomic<double> units{0};
    TimePoint begin{};
    TimePoint end{};
    const auto on_begin = [&]() noexcept { begin = Clock::now(); };
    const auto on_end = [&]() noexcept { end = Clock::now(); };
    for (int pass = 0; pass < kPasses; ++pass) {
        units = 0;
        std::barrier begin_line(threads, on_begin);
        std::barrier end_line(threads, on_end);
        const auto run = [&](int thread) {
            work(thread);  // not timed: pages, caches, clock frequency
            begin_line.arrive_and_wait();
            double done = 0;
            while (Clock::now() - begin < kPassTime) done += work(thread);
            end_line.arrive_and_wait();
            units += done;
        };
        std::vector<std::thread> others;
        for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
        run(0);
        for (std::thread& other : others) other.join();
        best = std::max(best, units / std::chrono::duration<double>(end - begin).count());
    }
    return best;
}

using Vector = std::uint64_t __attribute__((vector_size(16)));  // a load that every x86-64 has
constexpr int kLoads = 8;                                       // independent sums of loads

std::int64_t vectors_per_thread(std::int64_t bytes, int threads) {
    const std::int64_t vectors = bytes / threads / static_cast<std::int64_t>(sizeof(Vector));
    return std::max<std::int64_t>(vectors / kLoads, 1) * kLoads;
}

// Pages are touched by the thread that will use them.
std::vector<std::unique_ptr<Vector[]>> buffers(std::int64_t vectors, int threads) {
    std::vector<std::unique_ptr<Vector[]>> made;
    for (int thread = 0; thread < threads; ++thread) {
        made.push_back(std::make_unique_for_overwrite<Vector[]>(static_cast<std::size_t>(vectors)));
        std::memset(
            made.back().get(), thread + 1, static_cast<std::size_t>(vectors) * sizeof(Vector)
        );
    }
    return made;
}

// Each returns its flops.
using FlopFn = double (*)();

double products_scalar() {
    using Floats = float __attribute__((vector_size(16)));
    Floats chains[kChains]{};
    const Floats a{0.999f, 0.999f, 0.999f, 0.999f};
    for (std::int64_t i = 0; i < kProductsPerCall; ++i) {
        for (Floats& chain : chains) chain = chain * a + a;
    }
    keep(chains);
    return 2.0 * 4 * kChains * kProductsPerCall;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double products_avx2() {
    __m256 chains[kChains];
    for (__m256& chain : chains) chain = _mm256_setzero_ps();
    const __m256 a = _mm256_set1_ps(0.999f);
    for (std::int64_t i = 0; i < kProductsPerCall; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) chains[c] = _mm256_fmadd_ps(chains[c], a, a);
    }
    keep(chains);
    return 2.0 * 8 * kChains * kProductsPerCall;
}

__attribute__((target("avx512f"))) double products_avx512() {
    __m512 chains[kChains];
    for (__m512& chain : chains) chain = _mm512_setzero_ps();
    const __m512 a = _mm512_set1_ps(0.999f);
    for (std::int64_t i = 0; i < kProductsPerCall; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) chains[c] = _mm512_fmadd_ps(chains[c], a, a);
    }
    keep(chains);
    return 2.0 * 16 * kChains * kProductsPerCall;
}

__attribute__((target("avx512f,avx512bf16"))) double products_avx512bf16() {
    __m512 chains[kChains];
    for (__m512& chain : chains) chain = _mm512_setzero_ps();
    const __m512 ones = _mm512_set1_ps(1.f);
    const __m512bh a = _mm512_cvtne2ps_pbh(ones, ones);
    for (std::int64_t i = 0; i < kProductsPerCall; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) chains[c] = _mm512_dpbf16_ps(chains[c], a, a);
    }
    keep(chains);
    return 2.0 * 32 * kChains * kProductsPerCall;
}
#endif

struct Products {
    FlopFn run = nullptr;
    std::string_view instruction{};
};

Products fp32_products() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return {products_avx512, "vfmadd231ps zmm"};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return {products_avx2, "vfmadd231ps ymm"};
    }
#endif
    return {products_scalar, "a product and a sum"};
}

Products bf16_products() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) return {products_avx512bf16, "vdpbf16ps zmm"};
#endif
    return fp32_products();
}

}  // namespace

double read_rate(std::int64_t bytes, int threads) {
    const std::int64_t count = vectors_per_thread(bytes, threads);
    const auto memory = buffers(count, threads);
    return best_rate(threads, [&](int thread) {
        const Vector* const data = memory[static_cast<std::size_t>(thread)].get();
        Vector sums[kLoads]{};
        for (std::int64_t i = 0; i < count; i += kLoads) {
#pragma GCC unroll 8
            for (int k = 0; k < kLoads; ++k) sums[k] ^= data[i + k];
        }
        Vector all = sums[0];  // its address escapes, theirs must not: they stay in registers
        for (int k = 1; k < kLoads; ++k) all ^= sums[k];
        keep(all);
        return static_cast<double>(count) * sizeof(Vector);
    });
}

double copy_rate(std::int64_t bytes, int threads) {
    const std::int64_t count = vectors_per_thread(bytes, threads);
    const auto from = buffers(count, threads);
    const auto to = buffers(count, threads);
    return best_rate(threads, [&](int thread) {
        const auto i = static_cast<std::size_t>(thread);
        std::memcpy(to[i].get(), from[i].get(), static_cast<std::size_t>(count) * sizeof(Vector));
        keep(*to[i].get());
        return static_cast<double>(count) * sizeof(Vector);
    });
}

double fp32_flop_rate(int threads) {
    return best_rate(threads, [run = fp32_products().run](int) { return run(); });
}

double bf16_flop_rate(int threads) {
    return best_rate(threads, [run = bf16_products().run](int) { return run(); });
}

std::string_view fp32_instruction() { return fp32_products().instruction; }
std::string_view bf16_instruction() { return bf16_products().instruction; }

}  // namespace pitstop::bench
