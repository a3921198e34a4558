// Names places where a test may stop, kill or delay a process, to see how other processes react.
// Places exist only in builds with PITSTOP_FAULT_POINTS (the presets); elsewhere they generate no
// code.
//
// A process that finds itself named in the environment,
//   PITSTOP_FAULT_POINT="tp_worker[0.1]/stage_half"
// stops itself (SIGSTOP) when it reaches the place for the first time. The test waits until it has
// stopped (state T in /proc), then kills it or continues it (SIGCONT).
//
// To inject faults into a running tree, PITSTOP_FAULT_DIR names a directory. When a process
// reaches a place and finds the file "PROCESS@PLACE" there, it removes the file (a fault happens
// once) and does what the file says: "kill", "stop" or "delay MILLISECONDS". In every process,
// each message adds two places: "send TYPE", before it is queued, and "receive TYPE", after it is
// read.
#pragma once

#include <string>
#include <string_view>

namespace pitstop {

class FaultPoint {
  public:
    // `process` is this process's name, such as "tp_worker[0.1]".
    explicit FaultPoint(std::string_view process);

    // Stops the process if the environment names this place.
    void reach(std::string_view place);

  private:
    std::string place_{};
};

// Looks for a fault in PITSTOP_FAULT_DIR only, under the process name given to init_logging().
// `what` may come from a wire: a text that cannot be a message's name is never a place.
void reach_fault_point(std::string_view verb, std::string_view what);

}  // namespace pitstop
