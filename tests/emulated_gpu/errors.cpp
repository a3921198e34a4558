#include "tests/emulated_gpu/errors.h"

namespace pitstop::emulator {
namespace {

constexpr ErrorEntry kErrors[] = {
    {0, "cudaSuccess", "no error", false},
    {1, "cudaErrorInvalidValue", "invalid argument", false},
    {2, "cudaErrorMemoryAllocation", "out of memory", false},
    {3, "cudaErrorInitializationError", "initialization error", false},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument", false},
    {12, "cudaErrorInvalidPitchValue", "invalid pitch argument", false},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer", false},
    {35,
     "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version",
     false},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable", false},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function", false},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected", false},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal", false},
    {201, "cudaErrorDeviceUninitialized", "invalid device context", false},
    {208, "cudaErrorAlreadyMapped", "resource already mapped", false},
    {211, "cudaErrorNotMapped", "resource not mapped", false},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered", true},
    {217,
     "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices",
     false},
    {220,
     "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution",
     true},
    {304,
     "cudaErrorOperatingSystem",
     "OS call failed or operation not supported on this OS",
     false},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle", false},
    {500, "cudaErrorSymbolNotFound", "named symbol not found", false},
    {600, "cudaErrorNotReady", "device not ready", false},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered", true},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch", false},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated", true},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled", false},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled", false},
    {714, "cudaErrorHardwareStackError", "hardware stack error", true},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered", true},
    {716, "cudaErrorMisalignedAddress", "misaligned address", true},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure", true},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch", false},
    {800, "cudaErrorNotPermitted", "operation not permitted", false},
    {801, "cudaErrorNotSupported", "operation not supported", false},
    {900,
     "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing",
     false},
    {901,
     "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture",
     false},
    {902,
     "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences",
     false},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream", false},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work", false},
    {905,
     "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream",
     false},
    {906,
     "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream",
     false},
    {907,
     "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream",
     false},
    {908,
     "cudaErrorStreamCaptureWrongThread",
     "a stream capture sequence not initiated with cudaStreamCaptureModeRelaxed was ended in "
     "another thread",
     false},
    {910,
     "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update",
     false},
    {999, "cudaErrorUnknown", "unknown error", true},
    {kNcclErrors + 1, "ncclUnhandledCudaError", "unhandled cuda error", false},
    {kNcclErrors + 2, "ncclSystemError", "unhandled system error", false},
    {kNcclErrors + 3, "ncclInternalError", "internal error", false},
    {kNcclErrors + 4, "ncclInvalidArgument", "invalid argument", false},
    {kNcclErrors + 5, "ncclInvalidUsage", "invalid usage", false},
    {kNcclErrors + 6, "ncclRemoteError", "a remote process has ended", false},
};

}  // namespace

const ErrorEntry* error_entry(int number) {
    for (const ErrorEntry& entry : kErrors) {
        if (entry.number == number) return &entry;
    }
    return nullptr;
}

std::optional<int> error_named(const std::string& name) {
    for (const ErrorEntry& entry : kErrors) {
        if (name == entry.name) return entry.number;
    }
    return std::nullopt;
}

}  // namespace pitstop::emulator
