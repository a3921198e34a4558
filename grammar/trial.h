// Tries grammars in separate processes, so that a grammar that needs too much time or memory, or
// crashes the compiler, affects only its sender.
//
// The trial process is this program, started again, and keeps the vocabulary. Each grammar is
// compiled in a fork of it, with bounds on CPU time and memory, at a lower priority. The fork
// refuses a grammar if the compiler warns that it ignores a part.
//
// Owns:    the process, which ends with the object or with this process.
// Thread:  any; each call to run() waits for its own grammar alone.
// Bounded: kCpuSeconds, kMemoryBytes and kStackBytes per grammar, and the time that a busy machine
//          takes for it; the caller bounds how many run at once.
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

class Trials {
  public:
    static constexpr int kCpuSeconds = 5;
    static constexpr auto kWallMax = std::chrono::seconds(60);  // on a machine with other work
    static constexpr std::int64_t kMemoryBytes = std::int64_t{1} << 30;
    // Threads that later compile accepted grammars have larger stacks, so a grammar that was
    // accepted here does not overflow them.
    static constexpr std::size_t kStackBytes = std::size_t{1} << 20;

    explicit Trials(const Vocabulary& vocabulary, std::chrono::milliseconds wall_max = kWallMax)
        : vocabulary_(vocabulary.to_bytes()), wall_max_(wall_max) {}
    ~Trials();
    Trials(const Trials&) = delete;
    Trials& operator=(const Trials&) = delete;

    // Returns how many bytes the compiled grammar takes. Errors: kInvalidArgument names the
    // parameter and what is wrong, or which bound it exceeds; kUnavailable: no process could run,
    // or the machine was too busy to finish in time.
    [[nodiscard]] Result<std::int64_t> run(const messages::Grammar& grammar);

    // Ends the process. Grammars that are being tried, and later ones, fail.
    void stop();

    // The argument that makes a program a trial process, before the number of its socket: main()
    // calls serve_trials() and returns its result, before anything else.
    static constexpr std::string_view kArgument = "--try-grammars";

  private:
    Result<> start() REQUIRES(mutex_);
    Result<> give(int fd);
    void end_process() REQUIRES(mutex_);

    const std::string vocabulary_;  // its bytes
    const std::chrono::milliseconds wall_max_;
    Mutex mutex_{};
    int socket_ GUARDED_BY(mutex_) = -1;  // to the process; -1: none was started
    pid_t pid_ GUARDED_BY(mutex_) = -1;
    bool is_over_ GUARDED_BY(mutex_) = false;
};

// Works as a trial process until its owner is gone; returns its exit code.
int serve_trials(int socket);

}  // namespace pitstop::grammar
