#include "base/supervision.h"

#include "base/descriptors.h"
#include "base/log.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace pitstop {
namespace {

// The longest line is a version's: a path of at most PATH_MAX bytes and a label, which is shorter.
constexpr std::size_t kLineBytesMax = 8192;

}  // namespace

void Supervision::add_flags(FlagSet& flags) {
    flags.add("ready-fd", &ready_fd_, "descriptor to write READY to; set by the launcher");
    flags.add(
        "supervisor-fd",
        &supervisor_fd_,
        "descriptor to read the launcher's lines from; set by the launcher"
    );
    flags.add("parent-pid", &parent_pid_, "the launcher's process id; set by the launcher");
}

Result<> Supervision::attach() {
    RETURN_IF_ERROR(raise_descriptor_limit());
    if (parent_pid_ != 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        // The launcher may have died before the line above took effect.
        if (::getppid() != static_cast<pid_t>(parent_pid_)) {
            return make_error(
                ErrorCode::kUnavailable, "the launcher (pid {}) is gone", parent_pid_
            );
        }
    }
    for (const int fd : {ready_fd_, supervisor_fd_}) {
        if (fd >= 0 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
            return make_error(
                ErrorCode::kInvalidArgument, "descriptor {}: {}", fd, std::strerror(errno)
            );
        }
    }
    if (supervisor_fd_ >= 0) ::fcntl(supervisor_fd_, F_SETFL, O_NONBLOCK);
    std::signal(SIGPIPE, SIG_IGN);
    return Ok{};
}

void Supervision::say(std::string_view kind, std::string_view line) {
    if (ready_fd_ < 0) return;
    std::string text = fmt::format("{} {}", kind, line.substr(0, kLineBytesMax));
    for (char& c : text) {
        if (c == '\n') c = ' ';
    }
    text += '\n';
    // A line is short enough for one write; if the launcher is gone this process ends anyway.
    [[maybe_unused]] const ssize_t num = ::write(ready_fd_, text.data(), text.size());
}

void Supervision::say_ready(std::string_view line) { say("READY", line); }
void Supervision::say_version(const Version& version) {
    say("VERSION",
        fmt::format("{}\t{}\t{}\t{}", version.epoch, version.digest, version.label, version.path));
}
void Supervision::say_unfinished(std::string_view line) { say("UNFINISHED", line); }
void Supervision::say_adapter(std::string_view line) { say("ADAPTER", line); }
void Supervision::say_no_adapter(std::string_view name) { say("NO_ADAPTER", name); }
void Supervision::say_lost(std::string_view line) { say("LOST", line); }
void Supervision::say_door(std::string_view door, std::string_view endpoint) {
    say("DOOR", fmt::format("{} {}", door, endpoint));
}
void Supervision::say_end(std::string_view line) { say("END", line); }
void Supervision::say_failed(std::string_view line) { say("FAILED", line); }
int Supervision::fail(const Error& error) {
    if (supervisor_fd_ < 0) spdlog::error("{}: {}", name_of(error.code), error.message);
    say_failed(error.message);
    return 1;
}

std::vector<std::string> Supervision::read_lines() {
    std::vector<std::string> lines;
    char buffer[512];
    while (supervisor_fd_ >= 0 && !is_over_ && lines.size() < 64) {
        const ssize_t num = ::read(supervisor_fd_, buffer, sizeof buffer);
        if (num < 0) break;  // nothing to read for now
        if (num == 0) {
            is_over_ = true;
            break;
        }
        for (const char c : std::string_view(buffer, static_cast<std::size_t>(num))) {
            if (c == '\n') {
                lines.push_back(std::exchange(partial_line_, {}));
            } else if (partial_line_.size() < kLineBytesMax) {
                partial_line_ += c;
            }
        }
    }
    return lines;
}

}  // namespace pitstop
