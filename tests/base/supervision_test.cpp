#include "base/supervision.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace pitstop {
namespace {

// The launcher's side: two pipes, and the flags that give the process its ends of the pipes.
struct Launcher {
    int ready[2] = {-1, -1};       // the process writes [1]
    int supervisor[2] = {-1, -1};  // the process reads [0]

    Launcher() {
        EXPECT_EQ(::pipe(ready), 0);
        EXPECT_EQ(::pipe(supervisor), 0);
    }
    ~Launcher() {
        for (const int fd : {ready[0], ready[1], supervisor[0], supervisor[1]}) {
            if (fd >= 0) ::close(fd);
        }
    }
    void write(std::string_view text) const {
        EXPECT_EQ(
            ::write(supervisor[1], text.data(), text.size()), static_cast<ssize_t>(text.size())
        );
    }
    void close_supervisor() { ::close(std::exchange(supervisor[1], -1)); }
    [[nodiscard]] std::string read() const {
        char buffer[8192];
        const ssize_t num = ::read(ready[0], buffer, sizeof buffer);
        return {buffer, static_cast<std::size_t>(std::max<ssize_t>(num, 0))};
    }
};

Result<> attach(Supervision& supervision, const Launcher& launcher, std::int64_t parent_pid) {
    FlagSet flags("test", "");
    supervision.add_flags(flags);
    std::vector<std::string> args{
        "--ready-fd=" + std::to_string(launcher.ready[1]),
        "--supervisor-fd=" + std::to_string(launcher.supervisor[0]),
        "--parent-pid=" + std::to_string(parent_pid)};
    std::vector<char*> argv{nullptr};
    for (std::string& arg : args) argv.push_back(arg.data());
    EXPECT_TRUE(flags.parse(static_cast<int>(argv.size()), argv.data()));
    return supervision.attach();
}

TEST(Supervision, SaysReadyAndFailedInOneLineEach) {
    const Launcher launcher;
    Supervision supervision;
    ASSERT_TRUE(attach(supervision, launcher, 0));
    supervision.say_ready("42 pages");
    EXPECT_EQ(launcher.read(), "READY 42 pages\n");
    supervision.say_version({.epoch = 7, .digest = "d1", .label = "step 7", .path = "/runs/7"});
    EXPECT_EQ(launcher.read(), "VERSION 7\td1\tstep 7\t/runs/7\n");
    supervision.say_lost("gone");
    EXPECT_EQ(launcher.read(), "LOST gone\n");
    supervision.say_failed("two\nlines");
    EXPECT_EQ(launcher.read(), "FAILED two lines\n");
    supervision.say_failed(std::string(100'000, 'x'));
    EXPECT_LE(launcher.read().size(), 8300U) << "a line is bounded";
}

TEST(Supervision, ReadsWholeLinesHoweverTheyArrive) {
    const Launcher launcher;
    Supervision supervision;
    ASSERT_TRUE(attach(supervision, launcher, 0));
    EXPECT_TRUE(supervision.read_lines().empty()) << "and does not wait";
    launcher.write("died tp_wor");
    EXPECT_TRUE(supervision.read_lines().empty());
    launcher.write("ker[0.1] signal 9\nstop\nst");
    EXPECT_EQ(
        supervision.read_lines(), (std::vector<std::string>{"died tp_worker[0.1] signal 9", "stop"})
    );
    EXPECT_FALSE(supervision.is_over());
}

TEST(Supervision, TheEndOfThePipeIsTheEndOfTheLauncher) {
    Launcher launcher;
    Supervision supervision;
    ASSERT_TRUE(attach(supervision, launcher, 0));
    launcher.write("stop\n");
    launcher.close_supervisor();
    EXPECT_EQ(supervision.read_lines(), (std::vector<std::string>{"stop"}));
    EXPECT_TRUE(supervision.is_over());
}

TEST(Supervision, WithoutFlagsAProcessIsOnItsOwn) {
    Supervision supervision;
    FlagSet flags("test", "");
    supervision.add_flags(flags);
    ASSERT_TRUE(supervision.attach());
    EXPECT_EQ(supervision.fd(), -1);
    supervision.say_ready("nobody listens");
    EXPECT_TRUE(supervision.read_lines().empty());
    EXPECT_FALSE(supervision.is_over());
}

TEST(Supervision, AProcessThatStartsAfterItsLauncherDiedDoesNotRun) {
    // Runs in a child, because attach() asks the kernel for a signal at the parent's death.
    const pid_t child = ::fork();
    if (child == 0) {
        const Launcher launcher;
        Supervision supervision;
        const Result<> result = attach(supervision, launcher, /*parent_pid=*/1);
        ::_exit(!result && result.error().code == ErrorCode::kUnavailable ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST(Supervision, AProcessThatWaitsForNothingDiesWithItsLauncher) {
    int alive[2];  // the process holds [1]; its death closes it
    ASSERT_EQ(::pipe(alive), 0);
    const pid_t launcher_pid = ::fork();
    if (launcher_pid == 0) {
        const pid_t parent = ::getpid();
        if (::fork() == 0) {
            ::close(alive[0]);
            const Launcher launcher;
            Supervision supervision;
            if (!attach(supervision, launcher, parent)) ::_exit(1);
            if (::write(alive[1], "+", 1) != 1) ::_exit(1);
            for (;;) ::pause();
        }
        ::close(alive[1]);
        for (;;) ::pause();
    }
    ::close(alive[1]);
    char byte = 0;
    ASSERT_EQ(::read(alive[0], &byte, 1), 1) << "attached";
    ::kill(launcher_pid, SIGKILL);
    ASSERT_EQ(::waitpid(launcher_pid, nullptr, 0), launcher_pid);
    pollfd end{alive[0], POLLIN, 0};
    ASSERT_EQ(::poll(&end, 1, /*timeout_ms=*/10'000), 1);
    EXPECT_EQ(::read(alive[0], &byte, 1), 0);
    ::close(alive[0]);
}

}  // namespace
}  // namespace pitstop
