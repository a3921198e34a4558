// Guards the reading of memory that is mapped from somebody else's file: whoever makes the file
// shorter meanwhile makes an access past its new end raise SIGBUS, which ends a process. Inside a
// guard it is an error that can be asked for:
//
//   CutGuard guard(bytes);          // of a mapping
//   use(bytes);                     // on this thread
//   if (guard.is_cut()) return ...  // what was read is not the file's
//
// Pages that are gone read as zeros from then on, for every thread, as long as the mapping stays.
//
// Thread: guards are their thread's own, and may be nested. The first one installs a handler of
//         SIGBUS for the process; what is not of a guarded range goes to the handler before it.
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

    // The handler calls this: if `address` lies in the range or in another guard's around this one,
    // it puts zeros there. Async-signal-safe.
    [[nodiscard]] static bool mend(const void* address);

  private:
    std::span<const std::byte> range_;
    std::atomic<bool> is_cut_{false};  // written by the handler, on the same thread
    CutGuard* outer_ = nullptr;
};

}  // namespace pitstop
