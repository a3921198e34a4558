#include "base/cut_guard.h"

#include "base/check.h"

#include <csignal>
#include <cstdint>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace pitstop {
namespace {

// The handler, which runs on the thread that made the access, reads the innermost guard.
thread_local CutGuard* current = nullptr;

struct sigaction before {};  // the previous handler; written once, before any guard exists

void on_sigbus(int, siginfo_t* info, void*) {
    if (info->si_code > 0 && CutGuard::mend(info->si_addr)) return;  // the access is repeated
    ::sigaction(SIGBUS, &before, nullptr);
    // A faulting access raises the signal again by itself; a signal sent by kill() does not recur.
    if (info->si_code <= 0) ::raise(SIGBUS);
}

void install() {
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    CHECK(::sigaction(SIGBUS, &action, &before) == 0);
}

}  // namespace

CutGuard::CutGuard(std::span<const std::byte> range) : range_(range), outer_(current) {
    static std::once_flag is_installed;
    std::call_once(is_installed, install);
    current = this;
}

CutGuard::~CutGuard() { current = outer_; }

bool CutGuard::mend(const void* address) {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    for (CutGuard* guard = current; guard != nullptr; guard = guard->outer_) {
        const auto begin = reinterpret_cast<std::uintptr_t>(guard->range_.data());
        const std::uintptr_t end = begin + guard->range_.size();
        if (at < begin || at >= end) continue;
        const std::uintptr_t from = at / page * page;
        const std::uintptr_t to = (end + page - 1) / page * page;
        void* zeros = ::mmap(
            reinterpret_cast<void*>(from),  // NOLINT(performance-no-int-to-ptr)
            to - from,
            PROT_READ | PROT_WRITE,  // the access may have been a read or a write
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
            -1,
            0
        );
        if (zeros == MAP_FAILED) return false;
        guard->is_cut_.store(true, std::memory_order_relaxed);
        return true;
    }
    return false;
}

}  // namespace pitstop
