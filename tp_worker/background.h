// One thread for work that must not hold up the loop: staging, digesting, reading tensors out. Jobs
// are done in the order given, one at a time, so none sees a copy of the weights that another is
// writing.
//
// Thread:  the loop gives jobs and takes answers; fd() becomes readable when there are some.
// answer()
//          is any thread's.
// Bounded: kJobsMax.
#pragma once

#include "messages/frames.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pitstop {

class Background {
  public:
    static constexpr std::size_t kJobsMax = 1024;
    // A job gives back what is to be sent, if anything.
    using Job = std::function<std::vector<Frames>()>;

    Background();
    // The job under way is waited for: whoever owns this makes it end (a stage: by dropping it).
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // False if too many wait already; the job is not taken then.
    [[nodiscard]] bool give(Job job);
    [[nodiscard]] std::vector<Frames> take_answers();
    // Says this too, from any thread.
    void answer(Frames frames);
    [[nodiscard]] int fd() const { return event_fd_; }

  private:
    void run();

    int event_fd_ = -1;
    std::mutex mutex_{};
    std::condition_variable is_changed_{};
    std::deque<Job> jobs_{};         // GUARDED_BY(mutex_)
    std::vector<Frames> answers_{};  // GUARDED_BY(mutex_)
    bool is_over_ = false;           // GUARDED_BY(mutex_)
    std::thread thread_{};
};

}  // namespace pitstop
