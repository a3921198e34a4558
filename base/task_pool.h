// Threads that share the items of one piece of work after the other, and sleep between two: to
// start one takes as long as to copy some 256 KiB.
//
// For work that copies megabytes. (The ops of a forward pass have kernels/thread_pool.h, whose
// threads spin.)
//
// Owns:   num_threads - 1 threads, or as many as the system gives, which sleep between two runs;
// the caller of run() is the last. Thread: one caller at a time.
#pragma once

#include "base/result.h"

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace pitstop {

class TaskPool {
  public:
    explicit TaskPool(int num_threads);
    ~TaskPool();
    TaskPool(const TaskPool&) = delete;
    TaskPool& operator=(const TaskPool&) = delete;

    // Calls work(i) for i in [0, num), on any thread, in ascending order of their beginnings;
    // returns when none runs any more. The first error ends it: what was not begun is left out.
    using Work = std::function<Result<>(std::size_t item)>;
    Result<> run(std::size_t num, const Work& work);

  private:
    void help();
    // Runs items as long as there are any. REQUIRES: `lock` holds the mutex, as it does afterwards.
    void run_items(std::unique_lock<std::mutex>& lock);

    std::mutex mutex_{};
    std::condition_variable there_is_work_{};
    std::condition_variable is_done_{};
    const Work* work_ = nullptr;    // GUARDED_BY(mutex_)
    std::size_t next_ = 0;          // GUARDED_BY(mutex_); item to begin
    std::size_t num_ = 0;           // GUARDED_BY(mutex_)
    std::size_t num_running_ = 0;   // GUARDED_BY(mutex_)
    std::optional<Error> error_{};  // GUARDED_BY(mutex_); the first
    bool is_over_ = false;          // GUARDED_BY(mutex_)
    std::vector<std::thread> threads_{};
};

}  // namespace pitstop
