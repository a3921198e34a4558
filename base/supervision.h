// Ties a process to the launcher that started it.
//
// The launcher gives each process two pipe ends. On `ready_fd` the process reports that it is
// ready, in one line. From `supervisor_fd` it reads lines ("stop", "died tp_worker[0.1] signal 9");
// end of file means that the launcher is gone. In addition, the kernel kills the process when the
// launcher dies (PR_SET_PDEATHSIG), so that not even a process that is stuck in a long forward pass
// outlives it. Without the flags (-1) a process runs on its own, as in tests.
//
// Thread: the loop thread only.
#pragma once

#include "base/flags.h"
#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

class Supervision {
  public:
    void add_flags(FlagSet& flags);

    // Call first in main, after the flags are parsed. Also raises the limit of descriptors.
    // Errors: the parent is already gone; the limit is too low to work with.
    Result<> attach();

    // Tells the launcher that this process is ready. Call once.
    void say_ready(std::string_view line);
    // Tells the launcher which version serves from now on, for a restart.
    struct Version {
        std::int64_t epoch = 0;
        std::string_view digest{};  // of the resident weights; empty: it could not be computed
        std::string_view label{};   // a single line
        std::string_view path{};    // the checkpoint; empty: no directory has all of it
    };
    void say_version(const Version& version);
    // Tells the launcher, on each change, which multi-call operations of callers are unfinished, in
    // this process's own format; empty: none. A restart passes the last line to the new process.
    void say_unfinished(std::string_view line);
    // Tells the launcher which version of an adapter serves from now on: one line, in this
    // process's own format, that begins with the name and a tab. A restart passes the last line of
    // each name to the new process.
    void say_adapter(std::string_view line);
    // Tells the launcher that no version of this adapter serves any more.
    void say_no_adapter(std::string_view name);
    // Tells the launcher, before this process ends, why it could not load the requested weights, or
    // any weights. A restart can then proceed without the requested ones.
    void say_lost(std::string_view line);
    // Tells the launcher where a door listens for other machines.
    void say_door(std::string_view door, std::string_view endpoint);
    // Asks the launcher to end the tree, with exit code 0.
    void say_end(std::string_view line);
    // Tells the launcher why this process is about to end, in one line.
    void say_failed(std::string_view line);
    // Reports the error that ends this process: to the launcher, which prints it, or to the log if
    // there is no launcher. Returns main's exit code.
    [[nodiscard]] int fail(const Error& error);

    // The descriptor to poll for reading; -1 if there is none.
    [[nodiscard]] int fd() const { return supervisor_fd_; }

    // Reads all available lines without waiting. is_over() tells afterwards whether the
    // launcher is gone.
    std::vector<std::string> read_lines();
    [[nodiscard]] bool is_over() const { return is_over_; }

  private:
    void say(std::string_view kind, std::string_view line);

    int ready_fd_ = -1;
    int supervisor_fd_ = -1;
    std::int64_t parent_pid_ = 0;
    std::string partial_line_{};
    bool is_over_ = false;
};

}  // namespace pitstop
