// Says how much host memory there is and may still be taken, by the machine's count and by the
// control groups that this process is in (a container's limit).
//
// Source: proc(5), "/proc/meminfo", MemTotal and MemAvailable; the kernel's cgroup-v2.rst,
// memory.max, memory.current, memory.stat.
#pragma once

#include <cstdint>
#include <string>

namespace pitstop::tp_worker {

// Returns bytes; the largest number where nothing says. `root` is where /proc and /sys are, for
// tests.
[[nodiscard]] std::int64_t free_host_bytes(const std::string& root = "");

// Returns the bytes of the machine, or of the smallest limit, whatever is taken of them: the same
// for every process of a container. The rest is as above.
[[nodiscard]] std::int64_t total_host_bytes(const std::string& root = "");

}  // namespace pitstop::tp_worker
