// Callbacks waiting for the caller's thread, and a descriptor that is readable while some do.
//
// Thread:  any; run() on one at a time.
// Bounded: an entry per open request (its chunks are joined meanwhile) and per answered call.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace pitstop {

class ReadyQueue {
  public:
    ReadyQueue();
    ~ReadyQueue();
    ReadyQueue(const ReadyQueue&) = delete;
    ReadyQueue& operator=(const ReadyQueue&) = delete;

    [[nodiscard]] int fd() const { return fd_; }
    void push(std::function<void()> callback);
    std::size_t run(std::size_t max);

  private:
    int fd_ = -1;  // an eventfd
    std::mutex mutex_;
    std::deque<std::function<void()>> waiting_{};  // GUARDED_BY(mutex_)
};

}  // namespace pitstop
