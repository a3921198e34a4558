#include "bus/run_dir.h"

#include "bus/limits.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace pitstop::bus {

Result<RunDir> RunDir::open(const std::string& path) {
    struct stat info {};
    if (path.empty() || ::stat(path.c_str(), &info) != 0) {
        return make_error(
            ErrorCode::kNotFound, "run directory '{}': {}", path, std::strerror(errno)
        );
    }
    if (!S_ISDIR(info.st_mode)) {
        return make_error(
            ErrorCode::kInvalidArgument, "run directory '{}' is not a directory", path
        );
    }
    if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
        return make_error(
            ErrorCode::kPermissionDenied,
            "run directory '{}' must be this user's and closed to others (mode 0700)",
            path
        );
    }
    constexpr std::string_view kLongest = "/requests-9999.sock";
    if (path.size() + kLongest.size() > kSocketPathBytesMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "run directory '{}' is too long for unix sockets: {} bytes, at most {}",
            path,
            path.size(),
            kSocketPathBytesMax - kLongest.size()
        );
    }
    return RunDir(path);
}

std::string RunDir::endpoint(std::string_view name) const {
    return fmt::format("ipc://{}/{}.sock", path_, name);
}

std::string RunDir::requests(ReplicaId replica) const {
    return endpoint(fmt::format("requests-{}", raw(replica)));
}
std::string RunDir::control(ReplicaId replica) const {
    return endpoint(fmt::format("control-{}", raw(replica)));
}
std::string RunDir::workers(ReplicaId replica) const {
    return endpoint(fmt::format("workers-{}", raw(replica)));
}

}  // namespace pitstop::bus
