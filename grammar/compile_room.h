// Bounds the memory of grammars that are compiled in this process at the same time. A compilation
// takes about as much as its trial took (trial.h), so that much is set aside for it; others wait
// until there is room. One that needs all of it, or more, runs alone. They enter in the order in
// which they came, so that a large one does not wait for as long as small ones come.
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

    // Lets no one in any more: those that wait go without a share.
    void close();

    // Holds memory from when there is room until its own end.
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
    std::uint64_t num_admitted_ GUARDED_BY(mutex_) = 0;  // the next one's place in the order
    bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace pitstop::grammar
