#include "checkpoint/open_file.h"

#include <cerrno>
#include <unistd.h>

namespace pitstop::checkpoint {

bool read_exactly(int fd, std::int64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t n = ::pread(fd, out.data(), out.size(), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = 0;
            return false;
        }
        out = out.subspan(static_cast<std::size_t>(n));
        offset += n;
    }
    return true;
}

}  // namespace pitstop::checkpoint
