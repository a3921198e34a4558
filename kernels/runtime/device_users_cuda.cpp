#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/cuda_libraries.h"
#include "kernels/runtime/device_users.h"

#include <fmt/format.h>

#include <array>
#include <dlfcn.h>
#include <fstream>
#include <limits>
#include <unistd.h>

namespace pitstop::kernels {
namespace {

// As declared in nvml.h. Source: NVML API Reference Guide, nvmlProcessInfo_t, nvmlReturn_t.
struct ProcessInfo {
    unsigned pid;
    unsigned long long used_bytes;  // kNotAvailable: some drivers do not report it
    unsigned gpu_instance;
    unsigned compute_instance;
};
constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();
constexpr int kSuccess = 0;
constexpr unsigned kProcessesMax = 256;

struct Nvml {
    int (*init)() = nullptr;
    int (*shut_down)() = nullptr;
    int (*get_device)(const char* uuid, void** device) = nullptr;
    int (*get_processes)(void* device, unsigned* num, ProcessInfo* processes) = nullptr;
};

Result<Nvml> open_nvml() {
    void* library = nullptr;
    for (const std::string& place : library_places("libnvidia-ml.so.1", {})) {
        library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr) break;
    }
    if (library == nullptr)
        return Error{ErrorCode::kUnavailable, "libnvidia-ml.so.1 was not found"};
    Nvml nvml;
    if (find_function(library, "nvmlInit_v2", nvml.init) &&
        find_function(library, "nvmlShutdown", nvml.shut_down) &&
        find_function(library, "nvmlDeviceGetHandleByUUID", nvml.get_device) &&
        find_function(library, "nvmlDeviceGetComputeRunningProcesses_v3", nvml.get_processes))
        return nvml;
    return Error{ErrorCode::kUnavailable, "libnvidia-ml.so.1 is too old to list processes"};
}

Error failed(const char* call, int error) {
    return make_error(ErrorCode::kUnavailable, "{} returned {}", call, error);
}

Result<std::vector<DeviceUser>> users_of(const Nvml& nvml) {
    void* device = nullptr;
    if (const int error = nvml.get_device(opened_cuda_device().uuid.c_str(), &device);
        error != kSuccess)
        return failed("nvmlDeviceGetHandleByUUID", error);
    std::array<ProcessInfo, kProcessesMax> processes{};
    unsigned num = kProcessesMax;
    if (const int error = nvml.get_processes(device, &num, processes.data()); error != kSuccess)
        return failed("nvmlDeviceGetComputeRunningProcesses", error);
    std::vector<DeviceUser> users;
    for (unsigned i = 0; i < num && i < kProcessesMax; ++i) {
        DeviceUser& user = users.emplace_back(DeviceUser{.pid = processes[i].pid});
        if (processes[i].used_bytes != kNotAvailable)
            user.bytes = static_cast<std::int64_t>(processes[i].used_bytes);
    }
    return users;
}

std::string name_of_process(std::int64_t pid) {
    if (pid == ::getpid()) return " (this one)";
    std::string name;
    std::ifstream file(fmt::format("/proc/{}/comm", pid));
    return std::getline(file, name) ? fmt::format(" ({})", name) : "";
}

}  // namespace

Result<std::vector<DeviceUser>> device_users() {
    static const Result<Nvml> nvml = open_nvml();
    if (!nvml) return nvml.error();
    if (const int error = nvml->init(); error != kSuccess) return failed("nvmlInit", error);
    Result<std::vector<DeviceUser>> users = users_of(*nvml);
    nvml->shut_down();
    return users;
}

std::string describe_device_users() {
    const Result<std::vector<DeviceUser>> users = device_users();
    if (!users)
        return fmt::format("the processes that use it are unknown: {}", users.error().message);
    if (users->empty()) return "the processes that use it are unknown: the driver names none";
    std::string text;
    for (const DeviceUser& user : *users) {
        text += fmt::format(
            "{}process {}{} uses {}",
            text.empty() ? "" : ", ",
            user.pid,
            name_of_process(user.pid),
            user.bytes ? fmt::format("{} bytes", *user.bytes) : "an unknown part"
        );
    }
    return text;
}

}  // namespace pitstop::kernels
