// Runs one thread for work that must not delay the loop: staging, digesting, reading tensors. Jobs
// are done in the order given, one at a time, so no job reads weights that another one is writing.
//
// Thread:  the loop gives jobs and takes answers; fd() becomes readable when there are some.
//          answer() may be called from any thread.
// Bounded: offer() takes no job while more than kOffersMax wait. Orders that must be carried out,
//          and that the protocol keeps few, are always taken.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "messages/frames.h"

#include <deque>
#include <functional>
#include <thread>
#include <vector>

namespace pitstop::tp_worker {

class Background {
  public:
    static constexpr std::size_t kOffersMax = 1024;
    // A job returns the messages to send, if any.
    using Job = std::function<std::vector<messages::Frames>()>;

    Background();
    // Calls stop().
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // Accepts a job of a kind whose number the protocol bounds, such as a stage's.
    void give(Job job);
    // Accepts a job of a kind that callers may order in any number. Returns false, without
    // accepting the job, if too many wait.
    [[nodiscard]] bool offer(Job job);
    // The answer to an order whose job is not accepted.
    [[nodiscard]] static Error too_many() {
        return {ErrorCode::kResourceExhausted, "too many calls wait for this worker"};
    }
    // Waits for the current job, and starts no other. The owner makes the current job end (a stage:
    // by dropping it). Answers may still be added.
    void stop();
    [[nodiscard]] std::vector<messages::Frames> take_answers();
    // Adds an answer, from any thread.
    void answer(messages::Frames frames);
    [[nodiscard]] int fd() const { return event_fd_; }

  private:
    void run();

    int event_fd_ = -1;
    Mutex mutex_{};
    Condition is_changed_{};
    std::deque<Job> jobs_ GUARDED_BY(mutex_){};
    std::vector<messages::Frames> answers_ GUARDED_BY(mutex_){};
    bool is_over_ GUARDED_BY(mutex_) = false;
    std::thread thread_{};
};

}  // namespace pitstop::tp_worker
