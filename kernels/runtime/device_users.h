// Which processes use the opened GPU's memory, according to the driver's management library.
//
// Source: NVML API Reference Guide, nvmlDeviceGetComputeRunningProcesses. The library belongs to
// the driver, and is opened when needed. In a container it uses the host's process numbers, or
// shows no processes.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::kernels {

struct DeviceUser {
    std::int64_t pid = 0;
    std::optional<std::int64_t> bytes{};  // empty if the driver does not report it
};

// REQUIRES: a GPU is open. kUnavailable: the library is missing, or does not report processes.
[[nodiscard]] Result<std::vector<DeviceUser>> device_users();

// Returns "process 31 (python3) uses 7 bytes, process 32 (this one) 9", or why that is unknown.
[[nodiscard]] std::string describe_device_users();

}  // namespace pitstop::kernels
