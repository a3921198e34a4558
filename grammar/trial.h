// Tries grammars in separate processes. A grammar that needs too much time or memory, or crashes
// the compiler, then affects only its sender.
//
// The trial process is this program, started a second time; it keeps the vocabulary. Each grammar
// is compiled in a fork of that process, at a lower priority and with bounds on CPU time and
// memory. The fork refuses a grammar if the compiler warns that it ignores a part.
//
// Owns:    the trial process, which ends with this object or with this program's process.
// Thread:  any; each call of run() waits for its own grammar only.
// Bounded: kCpuSeconds, kMemoryBytes and kStackBytes per grammar, and kWallMax of time. The caller
//          bounds how many trials run at once.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "base/time.h"
#include "grammar/vocabulary.h"
#include "messages/grammars.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace pitstop::grammar {

struct Tried {
    std::int64_t bytes = 0;       // of the compiled grammar
    std::int64_t peak_bytes = 0;  // the most memory that compiling it took
};

class Trials {
  public:
    static constexpr int kCpuSeconds = 5;
    static constexpr auto kWallMax = std::chrono::seconds(60);  // allows for busy machines
    static constexpr std::int64_t kMemoryBytes = std::int64_t{1} << 30;
    // Smaller than the stacks of the threads that later compile accepted grammars, so a grammar
    // that was accepted here cannot overflow those stacks.
    static constexpr std::size_t kStackBytes = std::size_t{1} << 20;

    explicit Trials(const Vocabulary& vocabulary, std::chrono::milliseconds wall_max = kWallMax)
        : vocabulary_(vocabulary.to_bytes()), wall_max_(wall_max) {}
    ~Trials();
    Trials(const Trials&) = delete;
    Trials& operator=(const Trials&) = delete;

    // Returns the memory that the grammar takes. Errors: kInvalidArgument, naming the parameter and
    // the problem or the exceeded bound; kUnavailable: no process could run, or the machine was too
    // busy to finish in time.
    [[nodiscard]] Result<Tried> run(const messages::Grammar& grammar);

    // Ends the process. Grammars that are being tried, and later ones, fail.
    void stop();

    // The argument that makes a program a trial process; the number of its socket follows. On this
    // argument, main() must first of all call serve_trials(), and return its result.
    static constexpr std::string_view kArgument = "--try-grammars";

  private:
    Result<> start() REQUIRES(mutex_);
    Result<> give(int fd);
    void end_process() REQUIRES(mutex_);

    const std::string vocabulary_;  // as bytes
    const std::chrono::milliseconds wall_max_;
    Mutex mutex_{};
    int socket_ GUARDED_BY(mutex_) = -1;  // connected to the process; -1: no process was started
    pid_t pid_ GUARDED_BY(mutex_) = -1;
    bool is_over_ GUARDED_BY(mutex_) = false;
};

// Runs as a trial process until the owner is gone. Returns the exit code.
int serve_trials(int socket);

}  // namespace pitstop::grammar
