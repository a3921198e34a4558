// Guards reads of a mapped file that another process may truncate. After that, an access past
// the new end raises SIGBUS, which would end the process. Inside a guard it becomes an error
// that can be queried:
//
//   CutGuard guard(bytes);          // of a mapping
//   use(bytes);                     // on this thread
//   if (guard.is_cut()) return ...  // the bytes read are not the file's
//
// The lost pages read as zeros from then on, for every thread, as long as the mapping exists.
//
// Thread: a guard belongs to its thread; guards may be nested. The first one installs a handler of
//         SIGBUS for the process; a SIGBUS outside of guarded ranges goes to the previous handler.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

namespace pitstop {

class CutGuard {
  public:
    explicit CutGuard(std::span<const std::byte> range);
    ~CutGuard();
    CutGuard(const CutGuard&) = delete;
    CutGuard& operator=(const CutGuard&) = delete;

    [[nodiscard]] bool is_cut() const { return is_cut_.load(std::memory_order_relaxed); }

    // Called by the handler. If `address` lies in the range of one of this thread's guards, maps
    // zeros there and returns true. Async-signal-safe.
    [[nodiscard]] static bool mend(const void* address);

  private:
    std::span<const std::byte> range_;
    std::atomic<bool> is_cut_{false};  // written by the handler, on the same thread
    CutGuard* outer_ = nullptr;
};

}  // namespace pitstop
