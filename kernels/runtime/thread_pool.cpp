#include "kernels/runtime/thread_pool.h"

#include "base/check.h"

#include <algorithm>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pitstop::kernels {
namespace {

void pause_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

constexpr std::uint64_t kRangesLeft = 0xffffffffu;  // the lower half of claims_

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
    CHECK(num_threads >= 1);
    for (int thread = 1; thread < num_threads; ++thread) {
        threads_.emplace_back([this, thread] { work(thread); });
    }
}

ThreadPool::~ThreadPool() {
    stopping_.store(true, std::memory_order_relaxed);
    job_.fetch_add(1, std::memory_order_release);
    job_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

bool ThreadPool::run_one(int thread) {
    std::uint64_t claims = claims_.load(std::memory_order_acquire);
    while ((claims & kRangesLeft) != 0) {
        const RangeFn fn = fn_.load(std::memory_order_relaxed);
        void* const context = context_.load(std::memory_order_relaxed);
        const std::int64_t num_items = num_items_.load(std::memory_order_relaxed);
        const std::int64_t grain = grain_.load(std::memory_order_relaxed);
        const std::uint32_t num_ranges = num_ranges_.load(std::memory_order_relaxed);
        // On success, this job had ranges left all the time since `claims` was read. So the job
        // read above is the current one, and run() will not return before num_done_ counts this
        // range.
        if (!claims_.compare_exchange_weak(
                claims, claims - 1, std::memory_order_acq_rel, std::memory_order_acquire
            )) {
            continue;
        }
        const std::int64_t index = num_ranges - static_cast<std::int64_t>(claims & kRangesLeft);
        const std::int64_t begin = index * grain;
        fn(context, begin, std::min(begin + grain, num_items), thread);
        if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_ranges && thread != 0) {
            num_done_.notify_one();  // run() may have parked
        }
        return true;
    }
    return false;
}

void ThreadPool::work(int thread) {
    std::uint32_t seen = 0;
    while (true) {
        for (int spin = 0; job_.load(std::memory_order_acquire) == seen && spin < kSpinIterations;
             ++spin)
            pause_cpu();
        job_.wait(seen, std::memory_order_acquire);
        seen = job_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_relaxed)) return;
        while (run_one(thread)) {
        }
    }
}

void ThreadPool::run(std::int64_t num_items, std::int64_t grain, RangeFn fn, void* context) {
    CHECK(grain >= 1);
    const std::int64_t num_ranges = (num_items + grain - 1) / grain;
    if (num_ranges <= 1 || threads_.empty()) {
        for (std::int64_t begin = 0; begin < num_items; begin += grain) {
            fn(context, begin, std::min(begin + grain, num_items), 0);
        }
        return;
    }
    CHECK(num_ranges <= std::numeric_limits<std::int32_t>::max());
    fn_.store(fn, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_items_.store(num_items, std::memory_order_relaxed);
    grain_.store(grain, std::memory_order_relaxed);
    num_ranges_.store(static_cast<std::uint32_t>(num_ranges), std::memory_order_relaxed);
    num_done_.store(0, std::memory_order_relaxed);
    const std::uint64_t number = (claims_.load(std::memory_order_relaxed) >> 32) + 1;
    claims_.store(
        (number << 32) | static_cast<std::uint64_t>(num_ranges), std::memory_order_release
    );
    job_.fetch_add(1, std::memory_order_release);
    job_.notify_all();

    while (run_one(0)) {
    }
    // Other threads still run the remaining ranges, at most one range each.
    for (int spin = 0; spin < kSpinIterations; ++spin) {
        if (num_done_.load(std::memory_order_acquire) == num_ranges) return;
        pause_cpu();
    }
    for (std::uint32_t done = num_done_.load(std::memory_order_acquire); done != num_ranges;
         done = num_done_.load(std::memory_order_acquire)) {
        num_done_.wait(done, std::memory_order_acquire);
    }
}

int num_threads_of(Stream stream) {
    return stream.handle == nullptr ? 1
                                    : static_cast<const ThreadPool*>(stream.handle)->num_threads();
}

void run_ranges(
    Stream stream, std::int64_t num_items, std::int64_t grain, ThreadPool::RangeFn fn, void* context
) {
    if (stream.handle != nullptr) {
        static_cast<ThreadPool*>(stream.handle)->run(num_items, grain, fn, context);
        return;
    }
    for (std::int64_t begin = 0; begin < num_items; begin += grain) {
        fn(context, begin, std::min(begin + grain, num_items), 0);
    }
}

}  // namespace pitstop::kernels
