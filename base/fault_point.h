// Names places where a test may stop, kill or delay a process, to see what the others make of it.
// They exist only in builds with PITSTOP_FAULT_POINTS (the presets); elsewhere there is no code.
//
// A process that finds itself named in the environment,
//   PITSTOP_FAULT_POINT="tp_worker[0.1]/stage_half"
// stops itself (SIGSTOP) on reaching the place for the first time. The test waits until it stands
// (state T in /proc), then kills it or lets it go on (SIGCONT).
//
// To bring faults into a running tree, PITSTOP_FAULT_DIR names a directory: who reaches a place and
// finds the file "PROCESS@PLACE" in it removes the file, so that it happens once, and does what it
// says: "kill", "stop" or "delay MILLISECONDS". Besides an updater's places, each message is two of
// them in every process: "send TYPE", before it is queued, and "receive TYPE", once it is read.
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

// Reaches the places of PITSTOP_FAULT_DIR alone; the process is who init_logging was told it is.
// `what` may come from a wire: what is no name of a message is no place.
void reach_fault_point(std::string_view verb, std::string_view what);

}  // namespace pitstop
