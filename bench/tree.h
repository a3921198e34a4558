// Runs a tree of processes that a benchmark starts, and stops when it is done.
//
// Owns:  the launcher's process and a private run directory, removed at the end.
#pragma once

#include "base/result.h"

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

namespace pitstop::bench {

class Tree {
  public:
    struct Args {
        std::string launcher{};            // launch/pitstop
        std::vector<std::string> serve{};  // arguments after `serve`, without --run-dir
        std::chrono::milliseconds start_timeout{120'000};
    };

    // Returns when the launcher reports that the tree is ready. Errors: the launcher cannot be run,
    // ended early (with its exit code), or was not ready in time. REQUIRES: this process has no
    // other thread yet.
    static Result<Tree> start(const Args& args);

    Tree(Tree&& other) noexcept;
    Tree& operator=(Tree&&) = delete;
    ~Tree();  // as stop()

    // Asks the launcher to stop, and kills it after a timeout. Returns its exit status as a shell
    // would: 128 + signal.
    int stop();

    [[nodiscard]] const std::string& run_dir() const { return run_dir_; }

  private:
    Tree() = default;
    Result<> wait_ready(std::chrono::milliseconds timeout);

    pid_t launcher_ = 0;  // 0: not running
    int output_fd_ = -1;  // the launcher's standard output
    std::string run_dir_{};
};

}  // namespace pitstop::bench
