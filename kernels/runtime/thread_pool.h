// Runs one worker's CPU ops on threads.
//
// parallel_for cuts [0, num_items) into ranges that depend only on num_items and grain; threads
// claim ranges in ascending order. Which thread runs a range does not matter: an op's outputs have
// the same bits with any number of threads, including one (P6).
//
// Owns:   num_threads - 1 threads; the caller of parallel_for is the last one.
// Thread: one caller at a time. parallel_for does not nest.
// Waits:  a thread without work spins for kSpinIterations, then parks in the kernel.
#pragma once

#include "kernels/runtime/stream.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace pitstop::kernels {

class ThreadPool {
  public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

    // Runs a range of items on thread `thread` of [0, num_threads).
    using RangeFn = void (*)(void* context, std::int64_t begin, std::int64_t end, int thread);

    // Calls fn for every range of `grain` items (the last may be shorter); returns when
    // all are done.
    void run(std::int64_t num_items, std::int64_t grain, RangeFn fn, void* context);

  private:
    void work(int thread);
    // Claims one range of the current job and runs it. Returns false if none is left.
    bool run_one(int thread);

    static constexpr int kSpinIterations = 4000;  // each a `pause`: about 50 us, a few ops' worth

    // The job. run() writes these while no range is left to claim. A thread reads them before its
    // claim succeeds, hence the atomics, and uses them only after that.
    std::atomic<RangeFn> fn_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<std::int64_t> num_items_{0};
    std::atomic<std::int64_t> grain_{1};
    std::atomic<std::uint32_t> num_ranges_{0};

    // The job number (upper half) and the ranges left to claim (lower half) share one word: a
    // thread that slept through a job cannot claim from the next one by mistake.
    alignas(64) std::atomic<std::uint64_t> claims_{0};
    alignas(64) std::atomic<std::uint32_t> num_done_{0};  // ranges of this job that have been run
    alignas(64) std::atomic<std::uint32_t> job_{0};       // counts jobs; idle threads wait on it
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_{};
};

[[nodiscard]] inline Stream stream_of(ThreadPool& pool) { return {&pool}; }

// Returns the number of threads behind a CPU stream.
[[nodiscard]] int num_threads_of(Stream stream);

// See ThreadPool::run. A null stream runs all ranges here, in order, as thread 0.
void run_ranges(
    Stream stream, std::int64_t num_items, std::int64_t grain, ThreadPool::RangeFn fn, void* context
);

// Calls fn(begin, end, thread).
template <class F>
void parallel_for(Stream stream, std::int64_t num_items, std::int64_t grain, F& fn) {
    run_ranges(
        stream,
        num_items,
        grain,
        [](void* context, std::int64_t begin, std::int64_t end, int thread) {
            (*static_cast<F*>(context))(begin, end, thread);
        },
        &fn
    );
}

}  // namespace pitstop::kernels
