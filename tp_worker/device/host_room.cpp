#include "tp_worker/device/host_room.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// Returns the number after `name` at the beginning of a line.
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
    if (std::ifstream(path) >> number) return number;  // "max" means no limit
    return std::nullopt;
}

std::int64_t limit_of_group(const std::string& directory) {
    return number_in(directory + "/memory.max").value_or(kUnlimited);
}

std::int64_t free_in_group(const std::string& directory) {
    const std::optional<std::int64_t> limit = number_in(directory + "/memory.max");
    const std::optional<std::int64_t> used = number_in(directory + "/memory.current");
    if (!limit || !used) return kUnlimited;
    // The kernel evicts cached files that are not in use.
    const std::int64_t cached = number_of(directory + "/memory.stat", "inactive_file").value_or(0);
    return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - cached));
}

// Returns the smallest of the machine's number and the `bytes_in` of each control group, from this
// process's group up to the root.
template <class BytesInGroup>
std::int64_t least_bytes(
    const std::string& root, const std::string& of_machine, BytesInGroup bytes_in
) {
    constexpr std::int64_t kKib = 1024;
    std::int64_t least = kUnlimited;
    if (const auto kib = number_of(root + "/proc/meminfo", of_machine)) least = *kib * kKib;
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        if (!line.starts_with("0::/")) continue;  // version 2 has one line of this form
        const std::string top = root + "/sys/fs/cgroup";
        std::string group = line.substr(3);
        while (true) {
            least = std::min(least, bytes_in(group == "/" ? top : top + group));
            if (group.size() <= 1) break;
            group.resize(std::max<std::size_t>(1, group.rfind('/')));
        }
    }
    return least;
}

}  // namespace

std::int64_t free_host_bytes(const std::string& root) {
    return least_bytes(root, "MemAvailable:", free_in_group);
}

std::int64_t total_host_bytes(const std::string& root) {
    return least_bytes(root, "MemTotal:", limit_of_group);
}

}  // namespace pitstop::tp_worker
