#include "bench/push_command.h"

#include "base/time.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace pitstop::bench {
namespace {

// Runs the command; returns its standard output if it succeeded.
Result<std::string> output_of(std::vector<std::string> words) {
    std::array<int, 2> pipe_fds{};
    if (::pipe2(pipe_fds.data(), O_CLOEXEC) != 0)
        return make_error(ErrorCode::kResourceExhausted, "no pipe: {}", std::strerror(errno));
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
    pid_t pid = 0;
    const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(pipe_fds[1]);
    std::string output;
    std::array<char, 4096> piece{};
    ssize_t num = 0;
    while (error == 0 && ((num = ::read(pipe_fds[0], piece.data(), piece.size())) > 0 ||
                          (num < 0 && errno == EINTR))) {
        if (num > 0) output.append(piece.data(), static_cast<std::size_t>(num));
    }
    ::close(pipe_fds[0]);
    if (error != 0)
        return make_error(ErrorCode::kNotFound, "cannot run {}: {}", words[0], strerror(error));
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
    return make_error(ErrorCode::kUnavailable, "{} {} failed", words[0], words[1]);
}

}  // namespace

Result<UpdateWaterfall> run_push(const PushCommand& command) {
    std::vector<std::string> words{
        command.launcher, "push", command.checkpoint, "--run-dir", command.run_dir, "--json"};
    words.insert(words.end(), command.flags.begin(), command.flags.end());
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(const std::string output, output_of(std::move(words)));
    const double call_s = pitstop::seconds(Clock::now() - begin);
    const auto report = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
    if (!report.is_object() || !report.contains("reply"))
        return make_error(ErrorCode::kMalformed, "the push printed no JSON report: {}", output);
    const auto& reply = report["reply"];
    messages::UpdateSeconds seconds;
    seconds.fields_in([&](const char* name, double& value, const char* /*about*/) {
        value = reply[name];
    });
    seconds.total_s = report["total_s"];  // includes opening and sending
    return UpdateWaterfall{
        .call_s = call_s,
        .seconds = seconds,
        .bytes = report["bytes"],
    };
}

}  // namespace pitstop::bench
