// Callbacks that wait for the caller's thread, and a descriptor that is readable while any wait.
//
// A message of the tree has output for many requests: the caller is woken once, after all of the
// message was read.
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
    // Shared, because a request's callback is made once and not per chunk.
    using Callback = std::shared_ptr<const std::function<void()>>;
    void push(Callback callback);
    // Makes fd() readable if a callback waits.
    void wake();
    std::size_t run(std::size_t max);
    // No callback runs from now on: neither waiting nor later ones. May be called while run()
    // is in progress.
    void close();

  private:
    int fd_ = -1;  // an eventfd
    Mutex mutex_;
    std::deque<Callback> waiting_ GUARDED_BY(mutex_){};
    bool is_awake_ GUARDED_BY(mutex_) = false;  // whether fd_ is readable
    std::atomic<bool> is_closed_{false};
};

}  // namespace pitstop
