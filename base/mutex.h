// Wraps std::mutex, its lock and its condition variable in types that Clang's thread safety
// analysis knows (libstdc++'s have no attributes). The wrappers cost no more than std's types.
#pragma once

#include "base/thread_annotations.h"
#include "base/time.h"

#include <condition_variable>
#include <mutex>

namespace pitstop {

class CAPABILITY("mutex") Mutex {
  public:
    Mutex() = default;
    Mutex(const Mutex&) = delete;
    Mutex& operator=(const Mutex&) = delete;

  private:
    friend class MutexLock;
    std::mutex mutex_{};
};

// Locks a mutex for its lifetime, except between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
  public:
    explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
    ~MutexLock() RELEASE() = default;
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;

    void unlock() RELEASE() { lock_.unlock(); }
    void lock() ACQUIRE() { lock_.lock(); }

  private:
    friend class Condition;
    std::unique_lock<std::mutex> lock_;
};

// A wait returns on a notification, spuriously, and (wait_until) at the deadline. The caller tests
// its condition in a loop of its own, where the analysis sees that the mutex is held.
class Condition {
  public:
    void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
    // Returns false if the deadline has passed.
    bool wait_until(MutexLock& lock, TimePoint deadline) {
        return condition_.wait_until(lock.lock_, deadline) == std::cv_status::no_timeout;
    }
    void notify_one() { condition_.notify_one(); }
    void notify_all() { condition_.notify_all(); }

  private:
    std::condition_variable condition_{};
};

}  // namespace pitstop
