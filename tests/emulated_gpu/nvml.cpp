// The part of the driver's management library that the project calls, over the machine's accounts.
// Source: NVML API Reference Guide, nvmlDeviceGetHandleByUUID,
// nvmlDeviceGetComputeRunningProcesses.
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/settings.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace pitstop::emulator {
namespace {

enum Return : int {
    kSuccess = 0,
    kInvalidArgument = 2,
    kNotFound = 6,
    kInsufficientSize = 7,
};

struct ProcessInfo {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
};

std::string name_of(const std::array<std::uint8_t, 16>& uuid) {
    std::string name = "GPU";
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        const bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        std::array<char, 3> digits{};
        std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(uuid[i]));
        name += (begins_group ? "-" : "") + std::string(digits.data());
    }
    return name;
}

// A handle is the GPU's number + 1.
int gpu_of(const void* device) {
    return static_cast<int>(reinterpret_cast<std::intptr_t>(device)) - 1;
}

}  // namespace
}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    if (uuid == nullptr || device == nullptr) return kInvalidArgument;
    for (int gpu = 0; gpu < settings().num_gpus; ++gpu) {
        if (name_of(uuid_of(gpu)) != uuid) continue;
        *device = reinterpret_cast<void*>(static_cast<std::intptr_t>(gpu) + 1);
        return kSuccess;
    }
    return kNotFound;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* num, ProcessInfo* processes) {
    const int gpu = gpu_of(device);
    if (num == nullptr || gpu < 0 || gpu >= settings().num_gpus) return kInvalidArgument;
    const std::vector<MemoryUser> users = memory_users(gpu);
    const unsigned room = *num;
    *num = static_cast<unsigned>(users.size());
    if (users.size() > room) return kInsufficientSize;
    for (std::size_t i = 0; i < users.size(); ++i) {
        processes[i] = {
            static_cast<unsigned>(users[i].pid),
            static_cast<unsigned long long>(users[i].bytes),
            ~0U,
            ~0U};
    }
    return kSuccess;
}

}  // extern "C"
