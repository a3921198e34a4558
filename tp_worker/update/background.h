// Runs one thread for work that must not hold up the loop: staging, digesting, reading tensors out.
// Jobs are done in the order given, one at a time, so none sees a copy of the weights that another
// is writing.
//
// Thread:  the loop gives jobs and takes answers; fd() becomes readable when there are some.
//          answer() is any thread's.
// Bounded: offer() takes no job beyond kOffersMax that wait. Orders that must be carried out, and
//          are few by the protocol, are given whatever waits.
#pragma once

#include "base/mutex.h"
#include "messages/frames.h"

#include <deque>
#include <functional>
#include <thread>
#include <vector>

namespace pitstop::tp_worker {

class Background {
  public:
    static constexpr std::size_t kOffersMax = 1024;
    // A job gives back what is to be sent, if anything.
    using Job = std::function<std::vector<messages::Frames>()>;

    Background();
    // The job under way is waited for: whoever owns this makes it end (a stage: by dropping it).
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // Takes one of the jobs whose number the protocol bounds: a stage's, one at a time.
    void give(Job job);
    // Takes one of the jobs of which callers may order any number. Returns false if too many wait
    // already; the job is not taken then.
    [[nodiscard]] bool offer(Job job);
    [[nodiscard]] std::vector<messages::Frames> take_answers();
    // Says this too, from any thread.
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
