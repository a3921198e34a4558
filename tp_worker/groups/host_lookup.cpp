#include "tp_worker/groups/host_lookup.h"

#include "base/mutex.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <optional>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <utility>

namespace pitstop::tp_worker {
namespace {

using Found = Result<std::vector<HostAddress>>;

// Only a name needs a name server; a number does not.
enum class Kind { kNumber, kName };
Found resolve(const std::string& host, std::int64_t port, Kind kind) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (kind == Kind::kNumber ? AI_NUMERICHOST : 0);
    addrinfo* found = nullptr;
    const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (code != 0) {
        return make_error(
            ErrorCode::kNotFound, "'{}' is not a known host: {}", host, ::gai_strerror(code)
        );
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    std::vector<HostAddress> addresses;
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
        HostAddress& address = addresses.emplace_back();
        address.family = each->ai_family;
        address.size = each->ai_addrlen;
        CHECK(each->ai_addrlen <= sizeof address.address);
        std::memcpy(&address.address, each->ai_addr, each->ai_addrlen);
    }
    return addresses;
}

std::atomic<int> num_lookups{0};

// Shared by the caller that waits and the thread, which may finish later.
struct Lookup {
    Mutex mutex{};
    Condition done{};
    std::optional<Found> found GUARDED_BY(mutex){};
};

// Resolves on a thread of its own. That thread blocks signals, which are for the loop's thread.
Result<> start_lookup(
    const std::shared_ptr<Lookup>& lookup, const std::string& host, std::int64_t port
) {
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    Result<> started = Ok{};
    try {
        std::thread([lookup, host, port] {
            Found found = resolve(host, port, Kind::kName);
            num_lookups.fetch_sub(1);
            const MutexLock lock(lookup->mutex);
            lookup->found = std::move(found);
            lookup->done.notify_all();
        }).detach();
    } catch (const std::system_error& error) {
        num_lookups.fetch_sub(1);
        started = make_error(
            ErrorCode::kResourceExhausted,
            "cannot start a thread to look up '{}': {}",
            host,
            error.what()
        );
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return started;
}

}  // namespace

Result<std::vector<HostAddress>> look_up_host(
    const std::string& host, std::int64_t port, const Patience& patience
) {
    if (Found number = resolve(host, port, Kind::kNumber)) return number;
    if (num_lookups.fetch_add(1) >= kLookupsMax) {
        num_lookups.fetch_sub(1);
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot look up '{}': {} other look-ups are waiting, the most allowed",
            host,
            kLookupsMax
        );
    }
    const auto lookup = std::make_shared<Lookup>();
    RETURN_IF_ERROR(start_lookup(lookup, host, port));
    MutexLock lock(lookup->mutex);
    while (!lookup->found) {
        if (patience.is_called_off.load(std::memory_order_relaxed)) {
            return make_error(ErrorCode::kAborted, "cancelled while '{}' was looked up", host);
        }
        const TimePoint now = Clock::now();
        if (now >= patience.deadline) {
            return make_error(
                ErrorCode::kDeadlineExceeded, "no name server has answered for '{}' in time", host
            );
        }
        lookup->done.wait_until(lock, std::min<TimePoint>(now + kCallOffLook, patience.deadline));
    }
    return *std::move(lookup->found);
}

}  // namespace pitstop::tp_worker
