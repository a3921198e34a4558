#include "tp_worker/priority.h"

#include "base/log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

// If the kernel shares cores among sessions (autogroup), priorities count only inside a session.
// Each process has a session of its own from the launcher, so the session gets a priority, too.
// Source: sched(7), "The autogroup feature".
void yield_session(int nice) {
    if (::getsid(0) != ::getpid()) return;  // a user's shell, for a start by hand
    const int fd = ::open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;  // a kernel without autogroups
    const std::string text = std::to_string(nice);
    // The kernel accepts ten of these per second, from all processes together.
    constexpr int kTriesMax = 20;
    constexpr auto kRest = std::chrono::milliseconds(110);
    bool is_done = false;
    for (int i = 0; i < kTriesMax && !is_done; ++i) {
        if (i > 0) std::this_thread::sleep_for(kRest);
        is_done = ::write(fd, text.data(), text.size()) >= 0;
        if (!is_done && errno != EAGAIN) break;
    }
    if (!is_done) spdlog::warn("cannot lower the session's priority: {}", std::strerror(errno));
    ::close(fd);
}

}  // namespace

void yield_to_others() {
    constexpr int kNice = 5;  // more than the other processes have
    const int inherited = ::getpriority(PRIO_PROCESS, 0);
    if (::setpriority(PRIO_PROCESS, 0, inherited + kNice) != 0)  // limited to 19
        spdlog::warn("cannot lower the priority: {}", std::strerror(errno));
    yield_session(kNice);
}

}  // namespace pitstop::tp_worker
