#include "bench/machine.h"

#include "base/mapped_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace pitstop::bench {
namespace {

constexpr std::size_t kTreeFileBytesMax = std::size_t{1} << 20;

// Returns the value of `key` in a file of "key : value" lines, as under /proc.
std::string field_of(const std::filesystem::path& path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const std::size_t colon = line.find(':');
        if (colon == line.npos) continue;
        const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
        return begin == line.npos ? "" : line.substr(begin);
    }
    return "";
}

std::int64_t number_of(const std::filesystem::path& path, std::string_view key) {
    return std::atoll(field_of(path, key).c_str());
}

// Returns the first line a command prints; empty if it cannot be run.
std::string first_line_of(const char* command) {
    std::FILE* const pipe = ::popen(command, "r");
    if (pipe == nullptr) return "";
    std::array<char, 256> line{};
    if (std::fgets(line.data(), static_cast<int>(line.size()), pipe) == nullptr) line[0] = '\0';
    ::pclose(pipe);
    std::string text = line.data();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

}  // namespace

Machine this_machine() {
    Machine machine;
    machine.cpu = field_of("/proc/cpuinfo", "model name");
    const std::string flags = " " + field_of("/proc/cpuinfo", "flags") + " ";
    for (const char* flag : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
        if (flags.find(fmt::format(" {} ", flag)) != flags.npos)
            machine.cpu += fmt::format(" {}", flag);
    }
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) machine.cores = CPU_COUNT(&set);
    struct sysinfo info {};
    if (::sysinfo(&info) == 0) {
        machine.memory_bytes = static_cast<std::int64_t>(info.totalram) * info.mem_unit;
    }
    utsname name{};
    if (::uname(&name) == 0) machine.kernel = fmt::format("{} {}", name.sysname, name.release);
    return machine;
}

std::string root_dir() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    const std::filesystem::path bundle = program.parent_path().parent_path();
    const bool is_bundle = !error && std::filesystem::exists(bundle / "launch" / "pitstop", error);
    return is_bundle ? bundle.string() : PITSTOP_SOURCE_DIR;
}

std::string source_commit() {
    const std::string root = root_dir();
    std::string commit;
    if (std::getline(std::ifstream(root + "/COMMIT"), commit)) return commit;
    const std::string git = fmt::format(
        "git -C '{}' describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null", root
    );
    commit = first_line_of(git.c_str());
    return commit.empty() ? "unknown" : commit;
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

std::vector<std::string> command_of(int argc, char** argv) {
    std::vector<std::string> words{argv, argv + argc};
    if (!words.empty()) words[0] = std::filesystem::path(words[0]).filename();
    return words;
}

// Uses the process's clock, which counts nanoseconds: the times in /proc/PID/stat are
// ticks of 10 ms.
std::optional<double> cpu_seconds(pid_t pid) {
    clockid_t clock{};
    ::timespec time{};
    if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0)
        return std::nullopt;
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Result<std::vector<ProcessUse>> processes_of(const std::string& run_dir) {
    const std::string path = run_dir + "/tree.json";
    ASSIGN_OR_RETURN(const std::string text, MappedFile::read(path, kTreeFileBytesMax));
    const auto tree = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    std::vector<ProcessUse> found;
    const auto add = [&](std::string name, pid_t pid) {
        const std::filesystem::path proc = fmt::format("/proc/{}", pid);
        const std::optional<double> cpu_s = cpu_seconds(pid);
        if (!cpu_s) return;
        found.push_back({
            .name = std::move(name),
            .pid = pid,
            .cpu_s = *cpu_s,
            .peak_bytes = number_of(proc / "status", "VmHWM") * 1024,
            .resident_bytes = number_of(proc / "status", "VmRSS") * 1024,
        });
    };
    const auto problem = make_error(ErrorCode::kMalformed, "{} does not list processes", path);
    if (!tree.is_object() || !tree.contains("processes") || !tree["processes"].is_array()) {
        return problem;
    }
    if (tree.contains("launcher") && tree["launcher"].is_number_integer()) {
        add("launcher", tree["launcher"].get<pid_t>());
    }
    for (const auto& process : tree["processes"]) {
        if (!process.is_object() || !process.contains("name") || !process["name"].is_string() ||
            !process.contains("pid") || !process["pid"].is_number_integer()) {
            return problem;
        }
        add(process["name"].get<std::string>(), process["pid"].get<pid_t>());
    }
    return found;
}

}  // namespace pitstop::bench
