// Waits for what this process has given the opened GPU, without a synchronization of the device:
// while any stream captures, that would fail and end the capture (CUDA C++ Programming Guide,
// "Prohibited and Unhandled Operations"), and graphs are made beside updates and releases.
//
// Owns:   the list of the process's streams (DeviceStream), with the point before each capture.
// Thread: any.
#pragma once

#include "kernels/tensor.h"

#include <string_view>

namespace pitstop::kernels {

// By DeviceStream, of its stream.
void list_stream(void* stream);
void unlist_stream(void* stream);

// Begins the capture, ThreadLocal, behind a point that others may wait for meanwhile.
void begin_listed_capture(Stream stream);
// After cudaStreamEndCapture().
void end_listed_capture(Stream stream);

// Waits until all that was enqueued before the call is done, on every listed stream; what a stream
// captures is not work yet. Past kDeviceWaitMax the process ends as after a failing call, and the
// line says that `what` did not end.
void wait_for_streams(std::string_view what);

}  // namespace pitstop::kernels
