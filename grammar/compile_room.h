// Bounds the memory of grammars that are compiled in this process at the same time. A compilation
// takes about as much memory as its trial took (trial.h): it reserves that much, and waits until
// that much is free. A compilation that needs all the memory, or more, runs alone. Compilations
// start in the order of arrival, so that small ones do not overtake a large one forever.
//
//   const CompileRoom::Share share(room, tried.peak_bytes);
//   if (share.is_held()) ...
//
// Thread: any.
#pragma once

#include "base/mutex.h"

#include <cstdint>

namespace pitstop::grammar {

class CompileRoom {
  public:
    explicit CompileRoom(std::int64_t bytes_max) : bytes_max_(bytes_max) {}
    CompileRoom(const CompileRoom&) = delete;
    CompileRoom& operator=(const CompileRoom&) = delete;

    // Ends all waiting: waiting and later compilations get no share.
    void close();

    // Memory reserved for one compilation. The constructor waits until the memory is free.
    class Share {
      public:
        Share(CompileRoom& room, std::int64_t num_bytes);
        ~Share();
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;
        [[nodiscard]] bool is_held() const { return is_held_; }  // false: the room is closed

      private:
        CompileRoom& room_;
        std::int64_t num_bytes_;
        bool is_held_ = false;
    };

  private:
    const std::int64_t bytes_max_;
    Mutex mutex_{};
    Condition has_changed_{};
    std::int64_t num_held_ GUARDED_BY(mutex_) = 0;  // bytes
    std::uint64_t num_arrived_ GUARDED_BY(mutex_) = 0;
    std::uint64_t num_admitted_ GUARDED_BY(mutex_) = 0;  // the number of the next arrival to admit
    bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace pitstop::grammar
