#include "tp_worker/sources/process_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <sys/sysmacros.h>

namespace pitstop::tp_worker {

ProcessMaps::ProcessMaps(pid_t process) {
    const std::string path = fmt::format("/proc/{}/maps", process);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
        std::fopen(path.c_str(), "re"), std::fclose
    );
    if (!file) return;
    // A line is "begin-end perms offset major:minor inode path", with hexadecimal numbers except
    // for the inode.
    char* line = nullptr;
    std::size_t room = 0;
    for (std::size_t i = 0; i < kMapsMax; ++i) {
        if (::getline(&line, &room, file.get()) <= 0) break;
        unsigned device_major = 0;
        unsigned device_minor = 0;
        unsigned long inode = 0;
        constexpr int kNumFields = 3;
        const int num = std::sscanf(  // NOLINT(cert-err34-c): the kernel wrote it
            line,
            "%*s %*s %*s %x:%x %lu",
            &device_major,
            &device_minor,
            &inode
        );
        if (num == kNumFields && inode != 0)
            files_.emplace_back(makedev(device_major, device_minor), inode);
    }
    std::free(line);  // NOLINT(cppcoreguidelines-no-malloc): getline's
    std::ranges::sort(files_);
}

bool ProcessMaps::has(dev_t device, ino_t inode) const {
    return std::ranges::binary_search(files_, std::pair(device, inode));
}

}  // namespace pitstop::tp_worker
