#include "tests/emulated_gpu/in_process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::emulator {
namespace {

std::map<std::string, Part>& parts() {
    static std::map<std::string, Part> all;
    return all;
}

}  // namespace

bool define_part(const std::string& name, Part part) {
    return parts().emplace(name, std::move(part)).second;
}

int start_part(const std::string& name, const std::map<std::string, std::string>& environment) {
    const std::string argument = "--part=" + name;
    const pid_t child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped test leaves no process behind
        ::unsetenv("PITSTOP_REQUIRE_GPU");   // would fail a part, in which no test passes
        for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
        ::execl("/proc/self/exe", "emulated_gpu_test", argument.c_str(), nullptr);
        ::_exit(127);
    }
    return child;
}

int wait_part(int process) {
    int status = 0;
    if (process < 0 || ::waitpid(process, &status, 0) != process) return 127;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int run_part(const std::string& name, const std::map<std::string, std::string>& environment) {
    return wait_part(start_part(name, environment));
}

int run_defined_part(std::string_view name) {
    const auto found = parts().find(std::string(name));
    return found == parts().end() ? 126 : found->second();
}

}  // namespace pitstop::emulator

int main(int argc, char** argv) {
    constexpr std::string_view kPart = "--part=";
    if (argc == 2 && std::string_view(argv[1]).starts_with(kPart))
        return pitstop::emulator::run_defined_part(std::string_view(argv[1]).substr(kPart.size()));
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
