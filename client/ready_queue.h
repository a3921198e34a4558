// Keeps callbacks that wait for the caller's thread, and a descriptor that is readable while some
// do.
//
// A message of the tree's brings output for many requests: the caller is woken once, when all of it
// was read.
//
// Thread:  any; run() on one at a time.
// Bounded: an entry per open request (its chunks are joined meanwhile) and per answered call.
#pragma once

#include "base/mutex.h"

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

namespace pitstop {

class ReadyQueue {
  public:
    ReadyQueue();
    ~ReadyQueue();
    ReadyQueue(const ReadyQueue&) = delete;
    ReadyQueue& operator=(const ReadyQueue&) = delete;

    [[nodiscard]] int fd() const { return fd_; }
    // It is shared, as a request's callback is made once and not for every chunk.
    using Callback = std::shared_ptr<const std::function<void()>>;
    void push(Callback callback);
    // Makes fd() readable if something waits.
    void wake();
    std::size_t run(std::size_t max);
    // From now on nothing is run: neither what waits nor what comes later. It may be called while
    // run() is under way.
    void close();

  private:
    int fd_ = -1;  // an eventfd
    Mutex mutex_;
    std::deque<Callback> waiting_ GUARDED_BY(mutex_){};
    bool is_awake_ GUARDED_BY(mutex_) = false;  // fd_ is readable
    std::atomic<bool> is_closed_{false};
};

}  // namespace pitstop
