// Says who has the opened GPU's memory, by process, as the driver's management library says.
//
// Source: NVML API Reference Guide, nvmlDeviceGetComputeRunningProcesses. The library is the
// driver's, and is opened when it is asked; in a container it numbers processes as the host does,
// or shows none.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::kernels {

struct DeviceUser {
    std::int64_t pid = 0;
    std::optional<std::int64_t> bytes{};  // empty where the driver does not say
};

// REQUIRES: a GPU is open. kUnavailable: there is no such library, or it does not say.
[[nodiscard]] Result<std::vector<DeviceUser>> device_users();

// Returns "process 31 (python3) has 7 bytes, process 32 (this one) 9", or why that is unknown.
[[nodiscard]] std::string describe_device_users();

}  // namespace pitstop::kernels
