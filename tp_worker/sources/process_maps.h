// The files that another process has mapped, at one moment.
//
// Bounded: looks at kMapsMax mappings, more than the kernel allows by default.
// Source: proc(5), /proc/PID/maps.
#pragma once

#include <sys/types.h>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

class ProcessMaps {
  public:
    static constexpr std::size_t kMapsMax = std::size_t{1} << 20;

    // Empty if there is no such process, or this process may not look at it.
    explicit ProcessMaps(pid_t process);

    [[nodiscard]] bool has(dev_t device, ino_t inode) const;

  private:
    std::vector<std::pair<dev_t, ino_t>> files_{};  // sorted
};

}  // namespace pitstop::tp_worker
