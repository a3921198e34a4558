#include "base/fault_point.h"

#include "base/log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace pitstop {
namespace {

namespace fs = std::filesystem;

class FaultDir : public testing::Test {
  protected:
    void SetUp() override {
#ifndef PITSTOP_FAULT_POINTS
        GTEST_SKIP() << "a build without PITSTOP_FAULT_POINTS";
#endif
    }

    FaultDir()
        : dir_(fs::temp_directory_path() / ("pitstop-faults-" + std::to_string(::getpid()))) {
        fs::create_directory(dir_);
    }
    ~FaultDir() override { fs::remove_all(dir_); }

    void put(const std::string& place, const std::string& action) const {
        std::ofstream(dir_ / ("worker[0]@" + place)) << action;
    }
    [[nodiscard]] bool has(const std::string& place) const {
        return fs::exists(dir_ / ("worker[0]@" + place));
    }

    // Runs `body` in a process that is given the directory and calls itself worker[0]; returns how
    // it ended.
    [[nodiscard]] int status_of(const std::function<void()>& body) const {
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::setenv("PITSTOP_FAULT_DIR", dir_.c_str(), 1);
            if (!init_logging("worker[0]", "off")) ::_exit(2);
            body();
            ::_exit(0);
        }
        int status = 0;
        ::waitpid(pid, &status, WUNTRACED);
        if (WIFSTOPPED(status)) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
        }
        return status;
    }

  private:
    fs::path dir_;
};

TEST_F(FaultDir, AProcessKillsOrStopsItselfWhereItIsTold) {
    put("send commit", "kill");
    const int killed = status_of([] {
        reach_fault_point("receive", "commit");
        reach_fault_point("send", "commit");
    });
    EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
    put("stage_half", "stop");
    const int stopped = status_of([] { FaultPoint("worker[0]").reach("stage_half"); });
    EXPECT_TRUE(WIFSTOPPED(stopped));
}

TEST_F(FaultDir, AFaultHappensOnceAndOnlyAtItsPlace) {
    put("send commit", "delay 100");
    put("send stage", "kill");
    const int status = status_of([] {
        const auto begin = std::chrono::steady_clock::now();
        reach_fault_point("send", "commit");
        if (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100)) ::_exit(3);
        reach_fault_point("send", "commit");
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_FALSE(has("send commit"));
    EXPECT_TRUE(has("send stage"));
}

// The peer chooses a message's type: a type must not name a path outside the directory.
TEST_F(FaultDir, ATypeThatNamesNoMessageIsNoPlace) {
    put("send ..", "kill");
    const int status = status_of([] {
        reach_fault_point("send", "..");
        reach_fault_point("send", "../../etc/passwd");
        reach_fault_point("send", "Commit");
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_TRUE(has("send .."));
}

}  // namespace
}  // namespace pitstop
