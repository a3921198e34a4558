// Chunks on their way from the I/O thread to their reader. Chunks that wait are joined, so a
// mailbox has at most one.
#pragma once

#include "base/mutex.h"
#include "messages/chunks.h"
#include "messages/generation.h"

#include <chrono>
#include <optional>
#include <utility>

namespace pitstop {

// Thread: any.
class Mailbox {
  public:
    // Returns whether the mailbox was empty before.
    bool put(messages::OutputChunk chunk) {
        const MutexLock lock(mutex_);
        const bool was_empty = !unread_;
        if (was_empty) {
            unread_ = std::move(chunk);
        } else {
            messages::append_chunk(*unread_, std::move(chunk));
        }
        filled_.notify_all();
        return was_empty;
    }

    std::optional<messages::OutputChunk> take() {
        const MutexLock lock(mutex_);
        return std::exchange(unread_, std::nullopt);
    }

    // Waits until there is a chunk, or the time is over.
    std::optional<messages::OutputChunk> take(std::chrono::milliseconds timeout) {
        MutexLock lock(mutex_);
        const TimePoint deadline = Clock::now() + timeout;
        while (!unread_ && filled_.wait_until(lock, deadline)) continue;
        return std::exchange(unread_, std::nullopt);
    }

  private:
    Mutex mutex_;
    Condition filled_;
    std::optional<messages::OutputChunk> unread_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop
