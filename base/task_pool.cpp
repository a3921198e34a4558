#include "base/task_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace pitstop {

TaskPool::TaskPool(int num_threads) {
    for (int thread = 1; thread < num_threads; ++thread) {
        try {
            threads_.emplace_back([this] { help(); });
        } catch (const std::system_error&) {
            break;  // the system refuses more threads: the existing ones and the caller do the work
        }
    }
}

TaskPool::~TaskPool() {
    {
        const MutexLock lock(mutex_);
        is_over_ = true;
    }
    there_is_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

Result<> TaskPool::run(std::size_t num, const Work& work) {
    {
        const MutexLock lock(mutex_);
        work_ = &work;
        next_ = 0;
        num_ = num;
        error_.reset();
    }
    for (std::size_t i = 1; i < std::min(num, threads_.size() + 1); ++i)
        there_is_work_.notify_one();
    run_items();
    MutexLock lock(mutex_);
    while (num_running_ > 0) is_done_.wait(lock);
    work_ = nullptr;
    num_ = 0;
    if (error_) return *std::exchange(error_, std::nullopt);
    return Ok{};
}

void TaskPool::help() {
    while (true) {
        {
            MutexLock lock(mutex_);
            while (!is_over_ && next_ >= num_) there_is_work_.wait(lock);
            if (is_over_) return;
        }
        run_items();
    }
}

void TaskPool::run_items() {
    MutexLock lock(mutex_);
    while (next_ < num_) {
        const std::size_t item = next_++;
        const Work& work = *work_;  // valid while an item runs
        ++num_running_;
        lock.unlock();
        Result<> done = work(item);
        lock.lock();
        --num_running_;
        if (done) continue;
        next_ = num_;
        if (!error_) error_ = std::move(done).error();
    }
    if (num_running_ == 0) is_done_.notify_one();
}

}  // namespace pitstop
