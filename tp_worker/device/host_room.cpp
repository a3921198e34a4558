#include "tp_worker/device/host_room.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// The number behind `name` at the beginning of a line.
std::optional<std::int64_t> number_of(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string first;
        std::int64_t number = 0;
        if (words >> first && first == name && words >> number) return number;
    }
    return std::nullopt;
}

std::optional<std::int64_t> number_in(const std::string& path) {
    std::int64_t number = 0;
    if (std::ifstream(path) >> number) return number;  // "max" is none
    return std::nullopt;
}

std::int64_t free_in_group(const std::string& directory) {
    const std::optional<std::int64_t> limit = number_in(directory + "/memory.max");
    const std::optional<std::int64_t> used = number_in(directory + "/memory.current");
    if (!limit || !used) return kUnlimited;
    // Files that are cached and not in use make room.
    const std::int64_t cached = number_of(directory + "/memory.stat", "inactive_file").value_or(0);
    return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - cached));
}

}  // namespace

std::int64_t free_host_bytes(const std::string& root) {
    constexpr std::int64_t kKib = 1024;
    std::int64_t free = kUnlimited;
    if (const auto available = number_of(root + "/proc/meminfo", "MemAvailable:"))
        free = *available * kKib;
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        if (!line.starts_with("0::/")) continue;  // version 2 has one line of this form
        const std::string top = root + "/sys/fs/cgroup";
        std::string group = line.substr(3);
        while (true) {
            free = std::min(free, free_in_group(group == "/" ? top : top + group));
            if (group.size() <= 1) break;
            group.resize(std::max<std::size_t>(1, group.rfind('/')));
        }
    }
    return free;
}

}  // namespace pitstop::tp_worker
