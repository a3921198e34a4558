// The threads of one worker's CPU ops.
//
// parallel_for cuts [0, num_items) into ranges that depend on num_items and grain alone; threads
// claim ranges in ascending order. Which thread runs a range decides nothing: an op's outputs have
// the same bits with any number of threads, one included (P6).
//
// Owns:   num_threads - 1 threads; the caller of parallel_for is the last one.
// Thread: one caller at a time. parallel_for does not nest.
// Waits:  a thread without work spins for kSpinIterations, then parks in the kernel.
#pragma once

#include "kernels/tensor.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pitstop {

class ThreadPool {
  public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

    // A range of items, run by thread `thread` of [0, num_threads).
    using RangeFn = void (*)(void* context, std::int64_t begin, std::int64_t end, int thread);

    // Calls fn for every range of `grain` items (the last may be shorter); returns when all are
    // done.
    void run(std::int64_t num_items, std::int64_t grain, RangeFn fn, void* context);

  private:
    struct alignas(64) Job {
        RangeFn fn = nullptr;
        void* context = nullptr;
        std::int64_t num_items = 0;
        std::int64_t grain = 1;
    };
    void work(int thread);
    void claim_ranges(int thread);

    static constexpr int kSpinIterations = 2000;  // of `pause`: about 30 us, a few ops' worth

    Job job_{};
    alignas(64) std::atomic<std::int64_t> next_range_{0};
    alignas(64
    ) std::atomic<std::uint32_t> generation_{0};  // one more per job; odd values are not special
    alignas(64) std::atomic<int> num_busy_{0};    // threads that may still touch job_
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_{};
};

[[nodiscard]] inline Stream stream_of(ThreadPool& pool) { return {&pool}; }

// Number of threads behind a CPU stream.
[[nodiscard]] int num_threads_of(Stream stream);

// See ThreadPool::run. A null stream runs all ranges here, in order, as thread 0.
void run_ranges(
    Stream stream, std::int64_t num_items, std::int64_t grain, ThreadPool::RangeFn fn, void* context
);

// fn(begin, end, thread).
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

}  // namespace pitstop
