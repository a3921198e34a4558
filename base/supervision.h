// Ties a process to the launcher that started it.
//
// The launcher gives each process two pipe ends. On `ready_fd` the process says it is ready, in one
// line. From `supervisor_fd` it reads lines ("stop", "died tp_worker[0.1] signal 9"); its end of
// file means that the launcher is gone. Besides, the kernel kills the process when the launcher
// dies (PR_SET_PDEATHSIG), so that not even a process stuck in a long pass outlives it.
// Without the flags (-1) a process runs on its own, as in tests.
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

    // Call first in main, after the flags are parsed. Raises the limit of descriptors, too.
    // Errors: the parent is already gone; the limit is too low to work with.
    Result<> attach();

    // Tells the launcher, once.
    void say_ready(std::string_view line);
    // Tells the launcher what serves from now on, for a restart.
    struct Version {
        std::int64_t epoch = 0;
        std::string_view digest{};  // the resident weights'; empty: none could be computed
        std::string_view label{};   // it has one line
        std::string_view path{};    // the checkpoint; empty: it lies whole in no directory
    };
    void say_version(const Version& version);
    // Tells the launcher what callers are amid, in this process's own form, each time that it
    // changes; empty: nothing. A restart hands the last of it to the process that comes after.
    void say_unfinished(std::string_view line);
    // Tells the launcher why the weights that were to be loaded are not those it asked for, or none
    // at all, before this process ends: a restart can go on without them.
    void say_lost(std::string_view line);
    // Tells the launcher where a door listens for other machines.
    void say_door(std::string_view door, std::string_view endpoint);
    // Asks the launcher to end the tree, with exit code 0.
    void say_end(std::string_view line);
    // Tells the launcher why this process is about to end, in one line.
    void say_failed(std::string_view line);
    // Tells the error that ends this process: to the launcher, which prints what it is told, or to
    // the log where there is no launcher. Returns main's exit code.
    [[nodiscard]] int fail(const Error& error);

    // Whoever polls waits for this to become readable; -1 means that there is nothing to poll.
    [[nodiscard]] int fd() const { return supervisor_fd_; }

    // Reads what is there without waiting. Returns whole lines; `is_over()` afterwards tells
    // whether the launcher is gone.
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
