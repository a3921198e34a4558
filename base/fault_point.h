// Named places where a test may stop a process, to see what the others make of it. They exist only
// in builds with PITSTOP_FAULT_POINTS (the presets); elsewhere there is no flag and no code.
//
// A process started with --fault-point NAME --fault-dir DIR, on reaching NAME, writes the file
// DIR/fault-NAME-PID and stops itself (SIGSTOP). The test then kills it, or lets it go on
// (SIGCONT).
#pragma once

#include "base/flags.h"

#include <string>
#include <string_view>

namespace pitstop {

class FaultPoint {
  public:
    void add_flags(FlagSet& flags);

    // Stops here if this is the place, the first time.
    void reach(std::string_view name);

  private:
    std::string name_{};
    std::string dir_{};
};

}  // namespace pitstop
