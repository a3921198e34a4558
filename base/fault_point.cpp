#include "base/fault_point.h"

#ifdef PITSTOP_FAULT_POINTS
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <unistd.h>
#endif

namespace pitstop {

#ifdef PITSTOP_FAULT_POINTS
namespace {

constexpr std::string_view kDelay = "delay ";
constexpr int kDelayMaxMs = 60'000;

bool is_name(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
}

void act(std::string_view action) {
    if (action == "kill") std::raise(SIGKILL);
    if (action == "stop") std::raise(SIGSTOP);
    if (!action.starts_with(kDelay)) return;
    action.remove_prefix(kDelay.size());
    int ms = 0;
    std::from_chars(action.data(), action.data() + action.size(), ms);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::clamp(ms, 0, kDelayMaxMs)));
}

}  // namespace

FaultPoint::FaultPoint(std::string_view process) {
    const char* point = std::getenv("PITSTOP_FAULT_POINT");
    if (point == nullptr) return;
    const std::string_view named = point;
    const std::size_t slash = named.find('/');
    if (slash == named.npos || named.substr(0, slash) != process) return;
    place_ = named.substr(slash + 1);
}

void FaultPoint::reach(std::string_view place) {
    reach_fault_point("", place);
    if (place_.empty() || place != place_) return;
    place_.clear();
    std::raise(SIGSTOP);
}

void reach_fault_point(std::string_view verb, std::string_view what) {
    static const char* const dir = std::getenv("PITSTOP_FAULT_DIR");
    if (dir == nullptr || !is_name(what)) return;
    const std::string path = fmt::format(
        "{}/{}@{}{}{}",
        dir,
        spdlog::default_logger_raw()->name(),
        verb,
        verb.empty() ? "" : " ",
        what
    );
    std::ifstream file(path);
    if (!file) return;
    const std::string action{std::istreambuf_iterator<char>(file), {}};
    if (::unlink(path.c_str()) == 0) act(action);  // otherwise another thread was first
}

#else

FaultPoint::FaultPoint(std::string_view) {}
void FaultPoint::reach(std::string_view) {}
void reach_fault_point(std::string_view, std::string_view) {}

#endif

}  // namespace pitstop
