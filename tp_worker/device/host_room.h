// How much host memory exists and can still be used, according to the machine and to the control
// groups of this process (a container's limit).
//
// Source: proc(5), "/proc/meminfo", MemTotal and MemAvailable; the kernel's cgroup-v2.rst,
// memory.max, memory.current, memory.stat.
#pragma once

#include <cstdint>
#include <string>

namespace pitstop::tp_worker {

// Returns bytes; the largest number if unknown. `root` is where /proc and /sys are, for tests.
[[nodiscard]] std::int64_t free_host_bytes(const std::string& root = "");

// Returns the bytes of the machine, used or not, or the lowest limit if that is less: the same for
// every process of a container. `root`, and the result if unknown, are as above.
[[nodiscard]] std::int64_t total_host_bytes(const std::string& root = "");

}  // namespace pitstop::tp_worker
