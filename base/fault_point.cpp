#include "base/fault_point.h"

#include <csignal>
#include <cstdio>
#include <unistd.h>

namespace pitstop {

#ifdef PITSTOP_FAULT_POINTS

void FaultPoint::add_flags(FlagSet& flags) {
    flags.add("fault-point", &name_, "stop at this place; for tests");
    flags.add("fault-dir", &dir_, "where to say so; for tests");
}

void FaultPoint::reach(std::string_view name) {
    if (name_.empty() || name != name_) return;
    const std::string path = fmt::format("{}/fault-{}-{}", dir_, name_, ::getpid());
    name_.clear();
    if (std::FILE* file = std::fopen(path.c_str(), "w"); file != nullptr) std::fclose(file);
    std::raise(SIGSTOP);
}

#else

void FaultPoint::add_flags(FlagSet&) {}
void FaultPoint::reach(std::string_view) {}

#endif

}  // namespace pitstop
