#include "base/fault_point.h"

#ifdef PITSTOP_FAULT_POINTS
#include <csignal>
#include <cstdlib>
#endif

namespace pitstop {

#ifdef PITSTOP_FAULT_POINTS

FaultPoint::FaultPoint(std::string_view process) {
    const char* point = std::getenv("PITSTOP_FAULT_POINT");
    if (point == nullptr) return;
    const std::string_view named = point;
    const std::size_t slash = named.find('/');
    if (slash == named.npos || named.substr(0, slash) != process) return;
    place_ = named.substr(slash + 1);
}

void FaultPoint::reach(std::string_view place) {
    if (place_.empty() || place != place_) return;
    place_.clear();
    std::raise(SIGSTOP);
}

#else

FaultPoint::FaultPoint(std::string_view) {}
void FaultPoint::reach(std::string_view) {}

#endif

}  // namespace pitstop
