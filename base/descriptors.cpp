#include "base/descriptors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace pitstop {

Result<int> raise_descriptor_limit(int needed) {
    ::rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return make_error(
            ErrorCode::kInternal,
            "cannot read the limit of open file descriptors: {}",
            std::strerror(errno)
        );
    }
    const ::rlim_t most = std::min<::rlim_t>(limit.rlim_max, kDescriptorsMax);
    if (limit.rlim_cur < most) {
        limit.rlim_cur = most;
        // A process may always raise its soft limit to its hard limit. If the call fails
        // nevertheless, the limit read above remains.
        if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::getrlimit(RLIMIT_NOFILE, &limit);
    }
    const auto num = static_cast<int>(std::min<::rlim_t>(limit.rlim_cur, kDescriptorsMax));
    if (num < needed) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "this process may open {} file descriptors and needs {}: raise the limit (ulimit -n)",
            num,
            needed
        );
    }
    return num;
}

bool has_descriptors(int num) {
    std::vector<int> fds;
    fds.reserve(static_cast<std::size_t>(num));
    for (int i = 0; i < num; ++i) {
        const int fd = ::open("/", O_PATH | O_CLOEXEC);
        if (fd < 0) break;
        fds.push_back(fd);
    }
    for (const int fd : fds) ::close(fd);
    return fds.size() == static_cast<std::size_t>(num);
}

}  // namespace pitstop
