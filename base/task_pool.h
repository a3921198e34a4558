// Threads that run the items of one job together and sleep between jobs. Waking them takes as long
// as copying about 256 KiB, so use them for work that copies megabytes. (The ops of a forward pass
// use kernels/runtime/thread_pool.h, whose threads spin.)
//
// Owns:   num_threads - 1 threads, or as many as the system allows; the caller of run() is the last
//         thread.
// Thread: one caller at a time.
#pragma once

#include "base/mutex.h"
#include "base/result.h"

#include <cstddef>
#include <functional>
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

    // Calls work(i) for i in [0, num), on any thread, starting them in ascending order; returns
    // when none runs any more. After the first error, no further items start.
    using Work = std::function<Result<>(std::size_t item)>;
    Result<> run(std::size_t num, const Work& work);

  private:
    void help();
    // Runs items until none is left.
    void run_items();

    Mutex mutex_{};
    Condition there_is_work_{};
    Condition is_done_{};
    const Work* work_ GUARDED_BY(mutex_) = nullptr;
    std::size_t next_ GUARDED_BY(mutex_) = 0;  // the next item to start
    std::size_t num_ GUARDED_BY(mutex_) = 0;
    std::size_t num_running_ GUARDED_BY(mutex_) = 0;
    std::optional<Error> error_ GUARDED_BY(mutex_){};  // the first error
    bool is_over_ GUARDED_BY(mutex_) = false;
    std::vector<std::thread> threads_{};
};

}  // namespace pitstop
