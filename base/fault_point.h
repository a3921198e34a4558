// Named places where a test may stop a process, to see what the others make of it. They exist only
// in builds with PITSTOP_FAULT_POINTS (the presets); elsewhere there is no code.
//
// A process that finds itself named in the environment,
//   PITSTOP_FAULT_POINT="tp_worker[0.1]/stage_half"
// stops itself (SIGSTOP) on reaching the place for the first time. The test waits until it stands
// (state T in /proc), then kills it or lets it go on (SIGCONT).
#pragma once

#include <string>
#include <string_view>

namespace pitstop {

class FaultPoint {
  public:
    // `process` is how this process names itself: "tp_worker[0.1]".
    explicit FaultPoint(std::string_view process);

    // Stops here if this is the place.
    void reach(std::string_view place);

  private:
    std::string place_{};
};

}  // namespace pitstop
